"""Hides secrets in the data of a debug dump: by the words of their names, and by their form. Pure."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "REDACTED"
_LONGEST_NAME = 256
_SECRET_PART = re.compile(
    r"(?i)passw|passphrase|pwd|bindpw|secret|credential|token(?!iz|s$)|authorization|cookie|signature|webhook|private|sessionid"
    r"|(?:api|access|account|encryption|signing|ssh|tls|master|license)key"
)
"""Parts of a name that show a secret wherever they are."""
_SECRET_WORDS = frozenset({"auth", "bearer", "cred", "creds", "dsn", "jwt", "otp", "pass", "pat", "pw", "salt", "sas", "sig"})
"""Whole words of a name that show a secret. So does the word `key` behind another, as in KAGGLE_KEY and GCP_KEY_JSON, but not alone or in
front: many fields have this name."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_REFERENCES = ("Name", "Ref", "Path", "Seconds", "automountServiceAccountToken", "topologyKey", "LabelKeys")
"""Ends of names of fields that name a Secret and do not hold one, or that name a label."""
_POINTERS = frozenset({"name", "namespace", "key", "path", "audience"})
"""Fields below the name of a secret that say where it is, as in `secretKeyRef` and `projected`."""

_QUOTE = r"\\{0,7}[\"']"
_PAIR = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]{1,128})"
    rf"(?P<separator>(?:{_QUOTE})?\s{{0,4}}(?:=>|:=|[=:>\uff1d\uff1a]|%3[AaDd]|(?<=[\"'])\s{{0,4}},)\s{{0,4}}b?(?:{_QUOTE})?|(?<=[\w])\s{{1,4}})"
    r"(?=[^\s\"',;])"
)
"""A name and what separates it from its value. Whether the value is hidden depends on the name."""
_SCHEME = re.compile(r"(?:bearer|basic|token|negotiate)\s{1,4}", re.IGNORECASE)
_QUOTED = {quote: re.compile(rf"(?:[^{quote}\\]|\\.)*+", re.DOTALL) for quote in "\"'"}
_ESCAPED = {f"\\{quote}": re.compile(rf"(?:[^{quote}\\]|\\(?!{quote}))*+") for quote in "\"'"}
"""Values between quotes, and between quotes that are escaped because the text is itself a quoted value."""
_PLAIN = re.compile(r"[^\s\"';&<]+")
_REST = re.compile(r"[^\r\n\"']*+(?:[\"'][^\r\n\"']*+)*")
"""The rest of a line."""
_SECRET_FORMS = re.compile(
    r"(?i:(\bbearer\s{1,4})[\w.~+/=-]{8,})"
    r"|(://[^\s/:@\"']{0,256}:)(?!\d{1,5}/)[^\s\"']{1,256}(?=@)"
    r"|(://)[^\s/:@\"']{1,256}(?=@)"
    r"|\b(A(?:KIA|SIA|BIA|CCA))[0-9A-Z]{16}\b|\b(AIza)[\w-]{30,}|\b(ya29\.|GOCSPX-)[\w-]{16,}"
    r"|(?<![\w-])(eyJ)[\w-]{10,}\.[\w-]+\.[\w-]+"
    r"|\b(gh[pousr]_|github_pat_|gl[a-z]{2,5}-|hf_|[sr]k[-_]|xox[abeprs]-|xapp-|npm_|pypi-|do[opr]_v1_|SG\.|dapi|nvapi-|r8_|gsk_|hv[sbr]\."
    r"|AGE-SECRET-KEY-)[\w.-]{16,}"
    r"|(-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----)(?:[^-]|-(?!----END))*+"
    r"|(https?://(?:hooks\.[^\s/\"']{1,100}/|[^\s\"']{1,200}?/(?:webhook\w{0,8}|hooks)/))[^\s\"',;]+"
    r"|(/bot)\d{5,12}:[\w-]{20,}"
    r"|((?<![\w-])(?:-u|--user)[\s=]{1,4}[^\s:\"']{1,64}:)[^\s\"']+"
)
"""Credentials that show by their form."""
_RANDOM = re.compile(r"(?<![\w/+=.-])[A-Za-z0-9+][A-Za-z0-9/+]{39,}+={0,2}")
"""Text that may be random: a key of a cloud, or a line of a PEM file, whose first line may be in another line of a log."""
PATTERNS = (_SECRET_PART, _WORD, _PAIR, _SCHEME, *_QUOTED.values(), *_ESCAPED.values(), _PLAIN, _REST, _SECRET_FORMS, _RANDOM)
"""All of them meet text of tenants, so each must take linear time."""
_METADATA = ("managedFields",)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_USER_OPTIONS = ("-u", "--user")


def redact(value: Any, *, name: str = "") -> Any:
    """The value without possible secrets: values of variables and fields with such names, and credentials in text."""
    hides = _is_secret(name) and not name.endswith(_REFERENCES)
    if isinstance(value, dict):
        return _redacted_object(value, within=name if hides else "")
    if isinstance(value, list):
        before = [None, *value]  # the value of an option follows the option
        return [HIDDEN if _is_value_of(option, each) else redact(each, name=name) for option, each in zip(before, value, strict=False)]
    if isinstance(value, str):
        return HIDDEN if value and hides else _without_secrets(value)
    return HIDDEN if hides and isinstance(value, int | float) and not isinstance(value, bool) else value


def _is_value_of(option: Any, value: Any) -> bool:
    if not (isinstance(option, str) and isinstance(value, str) and option.startswith("-")):
        return False
    return _is_secret(option) or (option in _USER_OPTIONS and ":" in value)


def _redacted_object(value: dict[str, Any], *, within: str) -> dict[str, Any]:
    """`within` is the name of the secret that the object is, or empty. Then all texts in it are hidden that are not about its place."""
    redacted = {}
    for key, each in value.items():
        if key in _METADATA or key == _LAST_APPLIED:
            continue
        is_variable = key == "value" and isinstance(value.get("name"), str)
        is_inside = within and not isinstance(each, int | float) and key not in _POINTERS and not key.endswith(_REFERENCES)
        redacted[key] = redact(each, name=value["name"] if is_variable else within if is_inside else key)
    return redacted


def _is_secret(name: str) -> bool:
    """Whether a variable, field or option of this name holds a secret, by the words of the name."""
    name = name[:_LONGEST_NAME]
    words = [word.lower() for word in _WORD.findall(name)]
    has_key = not {"key", "keys"}.isdisjoint(words[1:]) and "public" not in words
    return has_key or not _SECRET_WORDS.isdisjoint(words) or _SECRET_PART.search("".join(words)) is not None


def _without_secrets(text: str) -> str:
    """The text without the values of secret names, as in `password=...` and `--token ...`, and without credentials of known forms."""
    pieces, begin, position = [], 0, 0
    while (pair := _PAIR.search(text, position)) is not None:
        position = pair.end()
        if _hides(pair):
            scheme = _SCHEME.match(text, position)
            value = scheme.end() if scheme else position
            pieces += [text[begin:value], HIDDEN]
            begin = position = _end_of_value(text, value, pair)
    return _RANDOM.sub(_hidden_if_random, _SECRET_FORMS.sub(_hidden, "".join([*pieces, text[begin:]])))


def _hides(pair: re.Match[str]) -> bool:
    name, separator = pair["name"], pair["separator"]
    if separator.isspace():
        return name.startswith("-") and _is_secret(name)
    return _is_secret(name) or (name.lower() == "key" and "=" in separator)


def _end_of_value(text: str, begin: int, pair: re.Match[str]) -> int:
    """A quoted value reaches to its quote, a header to the end of its line, and any other to the next space."""
    separator = pair["separator"]
    is_header = pair["name"].lower().endswith(("cookie", "authorization")) and ":" in separator
    pattern = _ESCAPED.get(separator[-2:]) or _QUOTED.get(separator[-1:]) or (_REST if is_header else _PLAIN)
    match = pattern.match(text, begin)
    return match.end() if match else begin


def _hidden(match: re.Match[str]) -> str:
    return f"{next(group for group in match.groups() if group)}{HIDDEN}"


def _hidden_if_random(match: re.Match[str]) -> str:
    """Digests have no capital letters, and names of files and of classes have few digits."""
    text = match[0]
    kinds = (str.isupper, str.islower, str.isdigit)
    return HIDDEN if all(sum(map(kind, text)) >= 3 for kind in kinds) else text
