"""Texts without what gives access to something: for logs, error messages, configs and cards."""

import re
from urllib.parse import unquote

#: what stands in the place of a secret
CUT = '***'
#: user and password before the host of an address, also a password with a slash; no port, and no "@" in a path
LOGIN = re.compile(r'(?<=://)(?:[^\s/?#\'"<>]*|[^\s/:@\[\'"<>]+:(?!\d*[/?#])[^\s@\'"<>]*)@')
#: query or fragment of an address, without the punctuation of the sentence around it
QUERY = re.compile(r'(?<=[\w/.~%-])[?#]([^\s\'"<>]+?)(?=[).,:;\]]*(?:[\s\'"<>]|$))')
#: parts of names in the queries of signed addresses: of S3, Google, Azure, Aliyun, CloudFront and others
SIGNED = re.compile(
    r'sig|token|key|secret|pass|pwd|auth|cred|jwt|session|policy|expire|code|^q-ak|^x-|^s[eprtv]$', re.IGNORECASE
)
#: text that is given by a name, as in "token='...'" and "'api_key': '...'"; cls_token is no such name
NAMED = re.compile(
    r'(?<![\w-])((?:[\w-]*(?:access|account|api|auth|hf|private|secret|security|session)[_-]?(?:key|token|secret)|'
    r'token|password|passwd|passphrase|secret|credentials?|authorization)[\'"]?\s*[=:]\s*)([\'"])(?:\\.|(?!\2).)+\2',
    re.I,
)
#: tokens that are known by how they begin: of the Hugging Face Hub, GitHub, AWS, and JSON Web Tokens. Python's http
#: takes a password for a port.
TOKEN = re.compile(
    r'\bhf_[A-Za-z0-9]{12,}|\b(?:gh[a-z]_|github_pat_|AKIA)\w{12,}|\beyJ[\w-]+\.[\w-]+\.[\w-]+|(?<=Bearer )\S+'
    r'|(?<=nonnumeric port: \')[^\']+'
)


def without_secrets(text: object) -> str:
    """A text with ``***`` in place of passwords, tokens and the queries of signed addresses.

    ``https://USER:PASSWORD@HOST/FILE?X-Amz-Signature=...`` becomes ``https://***@HOST/FILE?***``. A query stays if all
    of it is harmless, as ``?download=1``. A text that went through once does not change any more.
    """
    text = LOGIN.sub(f'{CUT}@', str(text))
    text = QUERY.sub(lambda match: match[0] if _is_harmless(match[1]) else match[0][0] + CUT, text)
    return TOKEN.sub(CUT, NAMED.sub(rf'\1\2{CUT}\2', text))


def config_without_secrets(node: object, name: str = '') -> object:
    """A copy of a node of a config without secrets, of which some show by the name of the setting alone."""
    if isinstance(node, dict):
        return {key: config_without_secrets(value, str(key)) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return type(node)(config_without_secrets(value, name) for value in node)
    if not isinstance(node, str):
        return node
    return CUT if node and NAMED.fullmatch(f"{name}='.'") else without_secrets(node)


def _is_harmless(query: str) -> bool:
    """Whether no name in a query is one of secrets, and no value looks like a secret: it is short, or has a dot."""
    for part in re.split('[&;?#]', query):
        name, given, value = unquote(part).partition('=')
        if given and SIGNED.search(name) or re.fullmatch(r'[\w+/=-]{32,}', value if given else name):
            return False
    return True
