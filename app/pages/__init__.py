"""Pages of the studio, one module each; `app.web.page_registry` finds them.

    PATH: str                       "" for the first page, else the word after the slash
    TITLE: str                      name in the navigation
    ORDER: int = 100                position in the navigation
    IN_NAVIGATION: bool = True      False for pages that are opened from another page
    build(studio) -> None           called once inside of the page's Gradio route

Modules whose name begins with an underscore are parts of pages.
"""
