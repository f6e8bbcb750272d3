# SPDX-License-Identifier: Apache-2.0
"""The directive `.. header:: codec.hpp`: what a header says of itself, then what it declares, in its order, in `atomo` or
in the namespace in it that has the header's name.

Breathe's own `doxygenfile` would declare the namespace once a header.
"""
import xml.etree.ElementTree as Tree
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

logger = logging.getLogger(__name__)
KINDS = {"enum": "doxygenenum", "typedef": "doxygentypedef", "variable": "doxygenvariable", "function": "doxygenfunction"}


def compound(xml, refid):
    return Tree.parse(Path(xml) / f"{refid}.xml").getroot().find("compounddef")


def line_in(node, header):
    """The line where a declaration stands in this header, None where it stands elsewhere."""
    location = node.find("location")
    return int(location.get("line")) if Path(location.get("file")).name == header else None


def declarations(xml, header):
    """(line, directive, name) of all that a header declares."""
    own = Path(xml) / f"namespaceatomo_1_1{Path(header).stem}.xml"
    found = declarations_in(xml, header, "namespaceatomo", "atomo")
    if own.exists():
        found += declarations_in(xml, header, own.stem, f"atomo::{Path(header).stem}")
    return sorted(found)


def declarations_in(xml, header, refid, scope):
    """The same of one namespace."""
    namespace = compound(xml, refid)
    members = namespace.findall("sectiondef/memberdef")
    names = [member.findtext("name") for member in members]
    found = []
    for member in members:
        name, line = member.findtext("name"), line_in(member, header)
        arguments = member.findtext("argsstring") if names.count(name) > 1 else ""
        found.append((line, KINDS[member.get("kind")], f"{scope}::{name}{arguments}"))
    for inner in namespace.findall("innerclass"):
        # Classes inside others, "atomo::Policy::Rule", come with those.
        if inner.text.count("::") == scope.count("::") + 1:
            described = compound(xml, inner.get("refid"))
            if described.get("kind") in ("class", "struct") and described.find("briefdescription/para") is not None:
                found.append((line_in(described, header), "doxygen" + described.get("kind"), inner.text))
    return [entry for entry in found if entry[0] is not None]


class Header(SphinxDirective):
    """See above."""

    required_arguments = 1

    def run(self):
        header, xml = self.arguments[0], self.config.breathe_projects[self.config.breathe_default_project]
        text = [f".. doxygenfile:: {header}", "   :sections: briefdescription detaileddescription", ""]
        for _, directive, name in declarations(xml, header):
            text += [f".. {directive}:: {name}", *["   :members:"] * (directive in ("doxygenclass", "doxygenstruct")), ""]
        node = nodes.section()
        self.state.nested_parse(StringList(text, source=header), self.content_offset, node)
        return node.children


def check_all(app):
    """Warns of a header that no page of the reference has; atomo.hpp only includes others."""
    told = "".join(page.read_text(encoding="utf-8") for page in Path(app.srcdir).glob("api/*.rst"))
    for header in sorted((Path(app.srcdir).parent / "include" / "atomo").glob("*.h*")):
        if f":: {header.name}\n" not in told and header.name != "atomo.hpp":
            logger.warning("docs/api has no page for include/atomo/%s", header.name)


def setup(app):
    app.add_directive("header", Header)
    app.connect("builder-inited", check_all)
    return {"parallel_read_safe": True}
