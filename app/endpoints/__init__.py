"""Typed functions of the studio: pages call them in their event handlers, and programs call them by name.

Each module has one class with the endpoints of one subject. `Studio` holds an instance of each.
"""
