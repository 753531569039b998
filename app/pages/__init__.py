"""The pages. A page is one file here; the shell finds it by itself.

    PATH: str                  "" for the first page, else the word after the slash
    TITLE: str                 its name in the navigation
    ORDER: int = 100           its place there
    SCRIPTS, STYLES: tuple     further files of app/static; NAME.js and NAME.css of a module NAME load by themselves
    build(context) -> None     called once, inside the Blocks route of the page

A page's script finds its place with `rl2f.widget(NAME, node => …)`, called for each `<div data-rl-widget="NAME">` that
`gr.HTML` puts on the page. Modules whose name begins with an underscore are parts, not pages.
"""
