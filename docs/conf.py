# SPDX-License-Identifier: Apache-2.0
"""Settings of Sphinx for the pages in this folder. `bash scripts/docs.sh` builds them."""
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "docs" / "_sphinx"), str(ROOT / "bindings" / "python")]

project = "atomo"
html_title = "atomo"
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
extensions = ["myst_parser", "breathe", "sphinx.ext.autodoc", "docstrings",
              "headers", "repository_links"]

# References that lead nowhere are warnings, and scripts/docs.sh takes those for errors.
nitpicky = True
nitpick_ignore_regex = [
    ("c:identifier", r"size_t|u?int\d+_t"),
    ("cpp:identifier", r"atomo(::verify)?|(std|codec)(::.*)?|u?int\d+_t|Impl|Handles|CUstream_st"),
    ("py:.*", r"(?!atomo\.[^_]).*"),  # types of Python and of the frameworks, and the package's own protocols
]
highlight_language = "text"

# GitHub's anchors of headings.
myst_heading_anchors = 5
# Pages that are a file of the root as it stands there: links in it start from the root.
repository_pages = {"format": "FORMAT.md", "contributing": "CONTRIBUTING.md", "security": "SECURITY.md",
                    "changelog": "CHANGELOG.md"}

# What Doxygen read from include/atomo.
breathe_projects = {"atomo": str(ROOT / "build" / "docs" / "xml")}
breathe_default_project = "atomo"
breathe_default_members = ("members", "undoc-members")
breathe_domain_by_extension = {"hpp": "cpp", "h": "c"}
breathe_show_include = False

# The Python package is read without being built: what is compiled and the frameworks are stand-ins.
autodoc_mock_imports = ["atomo._atomo", "atomo._atomo_jax", "atomo._atomo_train", "jax", "lightning", "optax", "pytorch_lightning", "torch"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
default_role = "literal"


def name_every_page(app, page, source):
    """Puts the pages that docs/index.md does not name into its last table of contents."""
    if page == "index":
        others = sorted(other for other in app.env.found_docs if f"\n{other}\n" not in source[0] and other != page)
        source[0] = source[0].replace("(every other page)", "\n".join(others))


def setup(app):
    from pygments.lexers.special import TextLexer

    app.connect("source-read", name_every_page)
    for language in ("errors", "policy", "specs"):  # blocks of docs/specs.md that a test reads
        app.add_lexer(language, TextLexer)
