"""Gradio's theme in terms of the CSS variables of `theme.css`, which define the light and dark colors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import gradio as gr

BACK, SURFACE, RAISED = "var(--rl-bg)", "var(--rl-surface)", "var(--rl-raised)"
TEXT, MUTED, BORDER, ACCENT = "var(--rl-text)", "var(--rl-muted)", "var(--rl-border)", "var(--rl-accent)"
SETTINGS = {
    "body_background_fill": BACK,
    "body_text_color": TEXT,
    "body_text_color_subdued": MUTED,
    "background_fill_primary": SURFACE,
    "background_fill_secondary": RAISED,
    "border_color_primary": BORDER,
    "border_color_accent": ACCENT,
    "border_color_accent_subdued": ACCENT,
    "color_accent_soft": "var(--rl-accent-soft)",
    "block_background_fill": SURFACE,
    "block_border_color": BORDER,
    "block_label_background_fill": SURFACE,
    "block_label_border_color": BORDER,
    "block_label_text_color": MUTED,
    "block_info_text_color": MUTED,
    "block_title_text_color": TEXT,
    "panel_background_fill": SURFACE,
    "panel_border_color": BORDER,
    "input_background_fill": "var(--rl-field)",
    "input_background_fill_focus": "var(--rl-field)",
    "input_border_color": "var(--rl-border-strong)",
    "input_border_color_focus": ACCENT,
    "input_placeholder_color": MUTED,
    "button_primary_background_fill": ACCENT,
    "button_primary_background_fill_hover": "var(--rl-accent-strong)",
    "button_primary_text_color": "var(--rl-on-accent)",
    "button_primary_border_color": ACCENT,
    "button_secondary_background_fill": SURFACE,
    "button_secondary_background_fill_hover": RAISED,
    "button_secondary_text_color": TEXT,
    "button_secondary_border_color": "var(--rl-border-strong)",
    "button_cancel_background_fill": SURFACE,
    "button_cancel_background_fill_hover": RAISED,
    "button_cancel_text_color": "var(--rl-wrong)",
    "button_cancel_border_color": "var(--rl-wrong)",
    "checkbox_background_color": "var(--rl-field)",
    "checkbox_background_color_selected": ACCENT,
    "checkbox_border_color": "var(--rl-border-strong)",
    "checkbox_border_color_selected": ACCENT,
    "checkbox_label_background_fill": SURFACE,
    "checkbox_label_background_fill_hover": RAISED,
    "checkbox_label_background_fill_selected": RAISED,
    "checkbox_label_text_color": TEXT,
    "checkbox_label_text_color_selected": TEXT,
    "checkbox_label_border_color": BORDER,
    "accordion_text_color": TEXT,
    "table_border_color": BORDER,
    "table_even_background_fill": SURFACE,
    "table_odd_background_fill": SURFACE,
    "table_row_focus": RAISED,
    "table_text_color": TEXT,
    "code_background_fill": RAISED,
    "link_text_color": ACCENT,
    "link_text_color_hover": "var(--rl-accent-strong)",
    "link_text_color_active": ACCENT,
    "link_text_color_visited": ACCENT,
    "slider_color": ACCENT,
    "loader_color": ACCENT,
    "error_background_fill": SURFACE,
    "error_border_color": "var(--rl-wrong)",
    "error_text_color": "var(--rl-wrong)",
    "stat_background_fill": ACCENT,
}
SAME_IN_BOTH = {
    "block_radius": "var(--rl-radius)",
    "container_radius": "var(--rl-radius)",
    "input_radius": "6px",
    "input_border_width": "1px",
    "button_large_radius": "6px",
    "button_medium_radius": "6px",
    "button_small_radius": "6px",
    "block_shadow": "none",
    "input_shadow": "none",
    "input_shadow_focus": "0 0 0 2px var(--rl-accent-soft)",
    "button_primary_shadow": "none",
    "button_secondary_shadow": "none",
    "button_transition": "background-color 80ms, border-color 80ms",
    "layout_gap": "12px",
    "block_padding": "12px",
    "block_title_text_weight": "500",
    "block_label_text_weight": "500",
    "button_medium_text_weight": "500",
    "button_large_text_weight": "500",
    "button_large_padding": "7px 14px",
    "button_medium_padding": "6px 12px",
    "button_small_padding": "4px 10px",
    "input_padding": "7px 10px",
}
FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "Liberation Sans", "sans-serif")
MONO = ("ui-monospace", "SF Mono", "Menlo", "Consolas", "DejaVu Sans Mono", "Liberation Mono", "monospace")


def make_theme() -> gr.themes.Base:
    """Return the theme. It uses only system fonts, so nothing is downloaded."""
    import gradio as gr
    from gradio.themes.utils.fonts import Font

    theme = gr.themes.Base(
        font=[Font(name) for name in FONT],
        font_mono=[Font(name) for name in MONO],
        text_size=gr.themes.sizes.text_sm,
        spacing_size=gr.themes.sizes.spacing_sm,
        radius_size=gr.themes.sizes.radius_sm,
    )
    dark = {f"{name}_dark": value for name, value in SETTINGS.items() if hasattr(theme, f"{name}_dark")}
    return theme.set(**SETTINGS, **SAME_IN_BOTH, **dark)
