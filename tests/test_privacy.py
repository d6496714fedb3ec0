import pytest

from mmattn.privacy import without_secrets


@pytest.mark.parametrize(
    ('text', 'shown'),
    [
        ('https://a.b/w.pth?X-Amz-Date=1&X-Amz-Signature=0f', 'https://a.b/w.pth?***'),
        ("checkpoint='HTTPS://a.b/w?download&X%2DGoog%2DSignature=0f',", "checkpoint='HTTPS://a.b/w?***',"),
        ('https://a.b/w.pth#access_token=0f', 'https://a.b/w.pth#***'),
        ('retries exceeded with url: /w.pth?token=0f (Caused', 'retries exceeded with url: /w.pth?*** (Caused'),
        (f'https://a.b/w.pth?{"0f" * 20}', 'https://a.b/w.pth?***'),
        ('https://me:pass@a.b/w.pth', 'https://***@a.b/w.pth'),
        ('https://me:pa/ss@a.b/w.pth', 'https://***@a.b/w.pth'),
        ('s3://hf_0123456789abcdef@a.b', 's3://***@a.b'),
        ("dict(api_key='0f', token=\"0'f\")", 'dict(api_key=\'***\', token="***")'),
        ('Authorization: Bearer 0f', 'Authorization: Bearer ***'),
        ('use hf_0123456789abcdef', 'use ***'),
    ],
)
def test_secrets(text, shown):
    """Each kind of secret is cut out, what is around it stays, and a second pass changes nothing."""
    assert without_secrets(text) == without_secrets(shown) == shown


@pytest.mark.parametrize(
    'text',
    [
        'https://zenodo.org/records/1/files/elsa_swin_tiny_patch4_window7_224_in1k.pth?download=1',
        'http://localhost:8000/a@b/w.pth?file=swin_tiny_patch4_window7_224_in1k_long_name.pth',
        "cls_token='a', num_tokens=3, key='value', 'relative_key': 'a', is it so? yes: me@a.b",
        r'^(?P<key>backbone)\.(?!token=).*$',
    ],
)
def test_ordinary_text(text):
    """Addresses with a harmless query, ports, revisions, and names that have the word token, stay."""
    assert without_secrets(text) == text
