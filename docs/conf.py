"""How Sphinx builds the pages of this folder: ``nox -s docs``."""

project = "alkstore"
copyright = "alkstore contributors"  # the name that Sphinx reads

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
# Headings can be linked to from another page.
myst_heading_anchors = 3
# Pages link to files of the repository that are no pages; tests/test_docs.py checks that they exist.
suppress_warnings = ["myst.xref_missing"]

exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "alkstore"
