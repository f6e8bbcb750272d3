# SPDX-License-Identifier: Apache-2.0
"""Policies as they are written: which rule takes a layer, and which takes none."""
from __future__ import annotations

import re
from collections.abc import Iterable


def is_spec(policy: str) -> bool:
    """Whether it is one codec for all, not rules: these have their `=` before any `:`, or stand among others."""
    text = policy.strip()
    colon, equals = text.find(":"), text.find("=")
    return not re.search(r"[; \t\n#]", text) and (equals < 0 or 0 <= colon <= equals)


def patterns(policy: str) -> list[str]:
    """The rules' patterns in their order, of a policy that is known to be sound; of one codec for all, `*`."""
    if is_spec(policy):
        return ["*"]
    rules = (line.partition("#")[0].partition("=")[0].strip() for line in re.split(r"[;\n]", policy))
    return [rule for rule in rules if rule]


def rule_of(policy: str, name: str) -> str:
    """The pattern that takes a layer: the first that matches its name.

    >>> rule_of("*.bias=identity; *=sign", "fc.bias")
    '*.bias'
    """
    return next(rule for rule in patterns(policy) if matches(rule, name))


def idle_rules(policy: str, names: Iterable[str]) -> list[str]:
    """The patterns that match none of the names.

    >>> idle_rules("*.Bias=identity; *=sign", ["fc.weight", "fc.bias"])
    ['*.Bias']
    """
    names = list(names)
    return [rule for rule in patterns(policy) if not any(matches(rule, name) for name in names)]


def matches(pattern: str, name: str) -> bool:
    """As the library does: `*` any characters, `?` one."""
    form = "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in pattern)
    return re.fullmatch(form, name, re.DOTALL) is not None
