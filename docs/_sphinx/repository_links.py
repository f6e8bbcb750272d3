# SPDX-License-Identifier: Apache-2.0
"""Links from pages to the repository's files: to the page that such a file is, else to a copy of it in the site.

What does not exist is left to MyST, which warns of it.
"""
import os
import shutil
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

COPIES = "_files"


class RepositoryLinks(SphinxPostTransform):
    """Resolves them before MyST looks (its priority is 9)."""

    default_priority = 8

    def run(self, **kwargs):
        for node in list(self.document.findall(pending_xref)):
            if node["reftype"] == "myst":
                resolved = self.resolve(node)
                if resolved is not None:
                    node.replace_self(resolved)

    def file_of(self, page, target):
        """The name in the repository of the file that a page's link means, None where there is none."""
        root = Path(self.app.srcdir).parent
        starts = [Path(self.env.doc2path(page)).parent]
        if page in self.config.repository_pages:
            starts.insert(0, root)
        for start in starts:
            for suffix in ("", ".md"):  # newer versions of MyST have taken it away
                path = Path(os.path.normpath(start / (target + suffix)))
                if path.is_file() and root in path.parents:
                    return path.relative_to(root).as_posix()
        return None

    def resolve(self, node):
        page = node.get("refdoc", self.env.docname)
        target, _, anchor = node["reftarget"].partition("#")
        name = self.file_of(page, target) if target else None
        folder = Path(self.app.srcdir).name
        if name is None or name.startswith(f"{folder}/") and page not in self.config.repository_pages:
            return None
        content = nodes.inline("", "", *[child.deepcopy() for child in node.children])
        pages = {file: document for document, file in self.config.repository_pages.items()}
        pages |= {"README.md": "index"}
        pages |= {f"{folder}/{self.env.doc2path(document, base=False)}": document for document in self.env.found_docs}
        anchor = anchor or node.get("reftargetid")
        if name not in pages:
            if anchor:
                return None
            self.app.repository_copies.add(name)
            up = self.app.builder.get_relative_uri(page, "index").rpartition("/")[0]
            reference = nodes.reference("", "", internal=True, refuri=f"{up}/{COPIES}/{name}".lstrip("/"))
            return reference + content
        if anchor:
            labels = self.env.get_domain("std").anonlabels
            there = self.env.metadata[pages[name]].get("myst_slugs", {}).get(anchor, ("", None))[1]
            anchor = there or labels.get(f"{self.env.doc2path(pages[name], base=False)}#{anchor}", ("", None))[1]
            if not anchor:
                return None
        return make_refnode(self.app.builder, page, pages[name], anchor or "", content)


def copy(app, error):
    """At the end of a build: copies what was linked."""
    if error is None:
        for name in sorted(app.repository_copies):
            there = Path(app.outdir) / COPIES / name
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(app.srcdir).parent / name, there)


def setup(app):
    app.add_config_value("repository_pages", {}, "env")
    app.repository_copies = set()
    app.add_post_transform(RepositoryLinks)
    app.connect("build-finished", copy)
    return {"parallel_read_safe": True}
