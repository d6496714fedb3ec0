import torch
from hypothesis import strategies as st

from mmattn.ops import shunted_attention

sizes = st.tuples(st.integers(1, 2), st.integers(1, 9), st.integers(1, 9))


def make_inputs(B, H, W, C, groups, dtype=torch.float64):
    """Query, keys and values; the maps of each group have another size."""
    query = torch.randn(B, H, W, C, dtype=dtype)
    pairs = [[torch.randn(B, g + 1, 3, C // groups, dtype=dtype) for g in range(groups)] for _ in 'kv']
    return query, *pairs


def test_equation_2():
    """The reference is the paper's softmax, one query, head and key at a time; the first heads use the first map."""
    query, keys, values = make_inputs(2, 2, 3, 8, 2)
    out = shunted_attention(query, keys, values, 4, backend='reference')
    d = 2
    for b, y, x, head in torch.cartesian_prod(*map(torch.arange, (2, 2, 3, 4))).tolist():
        group, place = divmod(head, 2)
        q = query[b, y, x, head * d : (head + 1) * d]
        k, v = (t[group][b, ..., place * d : (place + 1) * d].reshape(-1, d) for t in (keys, values))
        weights = torch.stack([(q * k[j]).sum() / d**0.5 for j in range(len(k))]).softmax(0)
        expected = sum(weights[j] * v[j] for j in range(len(k)))
        torch.testing.assert_close(out[b, y, x, head * d : (head + 1) * d], expected)


def test_attention_reads_maps_where_they_are(monkeypatch):
    """One call a group, without layout copies: fused kernels on a GPU take any strides but for contiguous channels."""
    given, attend = [], torch.nn.functional.scaled_dot_product_attention

    def watched(*heads, **settings):
        given.extend(heads)
        return attend(*heads, **settings)

    monkeypatch.setattr(torch.nn.functional, 'scaled_dot_product_attention', watched)
    query = torch.randn(2, 4, 6, 32)
    pairs = torch.randn(2, 2, 2, 3, 32).split(16, -1)  # keys and values are halves of a projection
    shunted_attention(query, *zip(*pairs), 4)
    owners = [query, *pairs[0], query, *pairs[1]]
    assert [t.untyped_storage().data_ptr() for t in given] == [t.untyped_storage().data_ptr() for t in owners]
    assert all(t.stride(-1) == 1 for t in given)
