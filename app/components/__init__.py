"""Components of the studio: subclasses of `gr.HTML`, each with its JavaScript module next to it."""
