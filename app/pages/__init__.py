"""Pages of the studio; `app.web.page_registry` finds them.

A page is a module, or a folder with the module `page` and its parts. The module has:

    PATH: str                       "" for the first page, else the word after the slash
    TITLE: str                      name in the navigation
    ORDER: int = 100                position in the navigation
    IN_NAVIGATION: bool = True      False for pages that are opened from another page
    build(studio) -> None           called once inside of the page's Gradio route

Modules whose name begins with an underscore are shared by all pages.
"""
