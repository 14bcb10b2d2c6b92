r"""Rules that turn the name in a certificate or token into the name of a principal.

They are written as Kafka writes `ssl.principal.mapping.rules`: rules separated by commas, of which
the first that matches the whole name decides.

    RULE:^spiffe:\/\/corp\/([a-z-]+)$/$1/      what the pattern matches becomes the replacement
    RULE:^([^@]+)@corp\.example$/$1/L         in lower case; `U` for upper case
    DEFAULT                                   the name as it is

A slash inside a pattern or a replacement is written as `\/`. A name that no rule matches belongs
to no principal.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from lakebed.config.checks import refuse

_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)\s*(?:,|$)")
_DEFAULT: Final = re.compile(r"DEFAULT\s*(?:,|$)")
_GROUP: Final = re.compile(r"\$([0-9])")
_RULES_MAX: Final = 100


class PrincipalRule(NamedTuple):
    """One rule."""

    pattern: re.Pattern[str]
    replacement: str
    """`$1` stands for the first group of the pattern."""
    case: str
    """`L` for lower case, `U` for upper case, empty to keep it."""

    def apply(self, name: str) -> str | None:
        """Return the principal's name, or None if the pattern does not match."""
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        text = _GROUP.sub(lambda group: match[int(group[1])] or "", self.replacement)
        return {"L": text.lower(), "U": text.upper()}.get(self.case, text)


DEFAULT_RULE: Final = PrincipalRule(re.compile(".*", re.DOTALL), "$0", "")


def parse_principal_rules(setting: str, text: str) -> tuple[PrincipalRule, ...]:
    """Return the rules of a setting; none means `DEFAULT`.

    Raises `InvalidArgumentError` naming the setting if the text cannot be read as rules.
    """
    rules: list[PrincipalRule] = []
    rest = text.strip()
    while rest:
        match = _RULE.match(rest)
        if match is not None:
            rules.append(_rule(setting, text, *match.groups()))
        else:
            match = _DEFAULT.match(rest)
            rules.append(DEFAULT_RULE)
        if match is None or len(rules) > _RULES_MAX:
            refuse(setting, text, f"up to {_RULES_MAX} of RULE:pattern/replacement/[LU] | DEFAULT")
            break
        rest = rest[match.end() :].lstrip()
    return tuple(rules) or (DEFAULT_RULE,)


def _rule(setting: str, text: str, pattern: str, replacement: str, case: str) -> PrincipalRule:
    try:
        compiled = re.compile(pattern.replace("\\/", "/"))
    except re.error as error:
        refuse(setting, text, f"rules whose patterns are regular expressions ({error})")
        raise
    groups = [int(group) for group in _GROUP.findall(replacement)]
    if any(group > compiled.groups for group in groups):
        refuse(setting, text, "rules whose replacements name groups of their patterns")
    return PrincipalRule(compiled, replacement.replace("\\/", "/"), case)


def map_principal(rules: tuple[PrincipalRule, ...], name: str) -> str | None:
    """Return the name that the first matching rule makes, or None if none matches."""
    for rule in rules:
        mapped = rule.apply(name)
        if mapped is not None:
            return mapped
    return None
