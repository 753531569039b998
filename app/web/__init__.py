"""The web server: Gradio app, routes, security, theme."""
