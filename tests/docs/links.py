#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the links of the documentation's site: files and anchors inside it. Nothing is fetched.

usage: links.py HTML_FOLDER         fails on a link to a file or an anchor that is not there
       links.py --prove DOCS_FOLDER fails unless broken links, planted in HTML and in a page, are found
"""
import html.parser
import os
import subprocess
import sys
import tempfile
import urllib.parse
from pathlib import Path


class Page(html.parser.HTMLParser):
    """The anchors of a page and what it links to."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links = {""}, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)
            elif name in ("href", "src") and value is not None:
                self.links.append(value)


def broken_links(folder):
    """What is wrong in a site, a line each, and how many links were looked at."""
    folder = Path(folder).resolve()
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    wrong, seen = [], 0
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            seen += 1
            target = Path(os.path.normpath(path.parent / urllib.parse.unquote(parts.path))) if parts.path else path
            where = path.relative_to(folder)
            if folder not in target.parents:
                wrong.append(f"{where}: {link} leads out of the site")
            elif not target.is_file():
                wrong.append(f"{where}: {link} leads to no file")
            elif target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].anchors:
                wrong.append(f"{where}: {link} leads to no anchor")
    if not seen:
        wrong.append(f"{folder} has no links at all")
    return sorted(set(wrong)), seen


PLANTED = {
    "no file": '<a href="gone.html">x</a>',
    "no anchor": '<a href="other.html#gone">x</a>',
    "no anchor here": '<a href="#gone">x</a>',
    "no picture": '<img src="gone.png">',
    "out of the site": '<a href="../other.html">x</a>',
}
GOOD = """<a href="other.html#there">x</a><a href="#">x</a><a href="https://example.org/gone">x</a>
<p id="here"></p><a href="#here">x</a>"""
# Links as pages have them; Sphinx itself has to complain.
PLANTED_IN_A_PAGE = {
    "gone_page": "gone_page.md",
    "gone_heading": "index.md#gone_heading",
    "gone_file": "../gone_file.py",
    "gone_here": "#gone_here",
}


def prove(docs):
    """Plants each broken link and returns those that go unnoticed, or good ones that do not."""
    missed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "other.html").write_text('<p id="there"></p>')
        for kind, text in {"": "", **PLANTED}.items():
            (folder / "index.html").write_text(GOOD + text)
            wrong, _ = broken_links(folder)
            if len(wrong) != bool(kind):
                missed.append(f"not noticed: {kind}" if kind else f"wrongly refused: {wrong}")
        source = folder / "source"
        source.mkdir()
        links = ["#a-page", *PLANTED_IN_A_PAGE.values()]
        (source / "index.md").write_text("# A page\n\n" + "".join(f"[x]({link})\n" for link in links))
        command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", docs, str(source), str(folder / "built")]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        missed += [f"not noticed in a page: {link}" for word, link in PLANTED_IN_A_PAGE.items() if word not in made.stderr]
        if made.returncode == 0 or made.stderr.count("WARNING: ") != len(PLANTED_IN_A_PAGE):
            missed.append(f"Sphinx ended with {made.returncode}: {made.stderr}")
    return missed


def main():
    if sys.argv[1] == "--prove":
        wrong, told = prove(sys.argv[2]), "each planted link was noticed"
    else:
        wrong, seen = broken_links(sys.argv[1])
        told = f"{seen} links inside the site, none broken"
    print("\n".join(wrong) or told)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
