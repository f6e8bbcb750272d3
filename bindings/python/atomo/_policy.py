# SPDX-License-Identifier: Apache-2.0
"""Policies as they are written: which rule takes a layer, and which takes none."""
from __future__ import annotations

import re
from collections.abc import Iterable

from ._errors import Error

_KEEP = re.compile(r"\bkeep=((?:[0-9.]|e[+-]?(?=[0-9]))+)")


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


def warm_up(policy: object, epoch: int) -> str:
    """The policy with each share `keep=` raised to at least 0.25^(epoch + 1): the warm-up of Deep Gradient Compression.

    Lin et al. (arXiv 1712.01887, section 3.3) leave out 75, 93.75, 98.4375, 99.6 and 99.9 % of the entries in the first
    epochs, from 0 on here. Give it to `DDPState.set_policy` at the begin of each; memories go on. The same on all ranks.

    >>> [warm_up("*.bias=identity; *=dgc+topk:keep=0.01", epoch) for epoch in (0, 9)]
    ['*.bias=identity; *=dgc+topk:keep=0.25', '*.bias=identity; *=dgc+topk:keep=0.01']

    Raises:
        atomo.Error: for an epoch that is no whole number from 0 on, a policy without a `keep=`, and one that is a count.
    """
    if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
        raise Error(f"epoch is {epoch!r}: a whole number from 0 on is expected")
    policy = re.sub(r"#.*", "", str(policy))  # a comment is no rule
    shares = _KEEP.findall(policy)
    if not shares:
        raise Error(f"the policy '{policy}' has no keep=: a codec that keeps a share is expected, such as dgc+topk:keep=0.01")
    for share in shares:
        if "." not in share and "e" not in share:
            raise Error(f"keep={share} is a count: a share is expected, such as keep=0.01")
        try:
            float(share)
        except ValueError:
            raise Error(f"keep={share} is no number: a share is expected, such as keep=0.01") from None
    return _KEEP.sub(lambda found: f"keep={max(float(found[1]), 0.25 ** (epoch + 1))!r}", policy)
