"""Aggregated attention of "TransNeXt: Robust Foveal Visual Perception for Vision Transformers": the neighbours of a
pixel and the pooled tokens of the map in one softmax; and its cosine attention to all tokens.

Layers call ``aggregated_attention`` and ``cosine_attention``. Every backend takes the arguments of
``aggregated_attention_reference`` and ``cosine_attention_reference``, which tests compare with.
"""

from collections.abc import Callable

from torch import Tensor

from .. import library
from ..backend import HALF_OR_SINGLE, CannotServe, check_maps, check_triton, named_backend, triton_multiplies
from ..elsa.reference import side
from ..tracing import is_tracing
from .cosine import cosine_attention_fused, cosine_attention_reference
from .cpp import aggregated_attention_cpp, cosine_attention_cpp
from .reference import aggregated_attention_reference, of_norm_1, scaled
from .shifted import aggregated_attention_shifted
from .table import PooledBias, bias_by_position, logarithmic_distances, table_of_pairs

__all__ = [
    'PooledBias',
    'aggregated_attention',
    'bias_by_position',
    'cosine_attention',
    'logarithmic_distances',
    'of_norm_1',
    'scaled',
    'table_of_pairs',
]

#: channels of a head that the Triton kernels take
WIDEST = 64


def aggregated_attention(
    query: Tensor,
    key_value: Tensor,
    pooled: Tensor,
    temperature: Tensor,
    embedding: Tensor,
    bias: Tensor,
    pooled_bias: PooledBias,
    tokens: Tensor,
    token_bias: Tensor,
    dropout_p: float = 0.0,
    backend: str | None = None,
) -> Tensor:
    r"""Attend to the k x k neighbours of every pixel and to M = h w pooled tokens (section 3.1).

    .. math::
        p_i &= \Big(\frac{q_i}{\|q_i\|} + e\Big) \log(1 + \exp(\tau)) \log N_i \\
        (a_i, \hat a_i) &= \mathrm{softmax}_{j, m}\Big(p_i \frac{k_j}{\|k_j\|} + b_{j-i}, \
            p_i \frac{\hat k_m}{\|\hat k_m\|} + \hat b_{im}\Big) \\
        f_i &= \sum_{j \in \Theta_i} \Big(a_{ij} + \frac{q_i}{\|q_i\|} t_{j-i} + c_{j-i}\Big) v_j
            + \sum_m \hat a_{im} \hat v_m

    Neighbours are in row-major order. Those outside the map have no share in the softmax, and no value. N is the number
    of neighbours inside and pooled tokens.

    Args:
        query: (B, H, W, heads, d), q.
        key_value: (B, H, W, 2, heads, d), k and v.
        pooled: (B, h, w, 2, heads, d), the keys and values of pooled tokens.
        temperature: (heads), tau.
        embedding: (heads, d), e.
        bias: (heads, k * k), b, k odd.
        pooled_bias: b of pooled tokens. Only 'reference' and 'triton' make it for all pixels and tokens in memory, and
            'shifted' with gradients.
        tokens: (heads, d, k * k), t.
        token_bias: (heads, k * k), c.
        dropout_p: probability of dropping a weight of the softmax.
        backend: 'reference', 'shifted', which makes no copy per neighbour, 'cpp' (the CPU, in float32), which has no
            weights in memory, or 'triton' (GPUs, 16 bits, d of at most 64). The last two have neither dropout nor
            second derivatives, and torch.func does not take them. On the CPU, the sum over neighbours of 'shifted' is
            in C++, too, without second derivatives. None chooses the fastest that can serve.

    Returns:
        (B, H, W, heads, d), of the dtype of ``key_value``. The softmax is computed in float32 at least.

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown or cannot run here.
    """
    parameters = dict(temperature=temperature, embedding=embedding, bias=bias, tokens=tokens, token_bias=token_bias)
    maps = dict(query=query, key_value=key_value, pooled=pooled)
    check_maps(dropout_p, **maps, **parameters)
    B, H, W, heads, d = query.shape if query.dim() == 5 else (0,) * 5
    taps = bias.shape[-1]
    if not is_tracing() and (
        key_value.shape != (B, H, W, 2, heads, d)
        or pooled.dim() != 6
        or pooled.shape != (B, *pooled.shape[1:3], 2, heads, d)
        or temperature.shape != (heads,)
        or embedding.shape != (heads, d)
        or not bias.shape == token_bias.shape == (heads, side(taps) ** 2)
        or tokens.shape != (heads, d, taps)
    ):
        given = ', '.join(f'{name} {tuple(x.shape)}' for name, x in {**maps, **parameters}.items())
        raise ValueError(
            'query must be (B, H, W, heads, d), key_value (B, H, W, 2, heads, d), pooled (B, h, w, 2, heads, d), '
            'temperature (heads), embedding (heads, d), bias and token_bias (heads, k * k) with odd k and tokens '
            f'(heads, d, k * k), not {given}'
        )
    if backend is None:
        backend = fastest(query, key_value, pooled, dropout_p)
    function = named_backend(BACKENDS, backend)
    return function(query, key_value, pooled, temperature, embedding, bias, pooled_bias, tokens, token_bias, dropout_p)


def fastest(query: Tensor, key_value: Tensor, pooled: Tensor, dropout_p: float = 0.0) -> str:
    """The backend that None stands for, of :func:`aggregated_attention`."""
    if not query.dtype == key_value.dtype == pooled.dtype or dropout_p:
        return 'shifted'
    if library.takes(query, key_value, pooled, dtypes=HALF_OR_SINGLE):
        return 'cpp'
    return 'triton' if query.shape[-1] <= WIDEST and triton_multiplies(query) else 'shifted'


def cosine_attention(
    query: Tensor,
    key_value: Tensor,
    temperature: Tensor,
    embedding: Tensor,
    position_bias: PooledBias,
    dropout_p: float = 0.0,
    backend: str | None = None,
) -> Tensor:
    r"""Attend to all N = H W tokens of the map (section 3.1).

    .. math::
        f_i = \mathrm{softmax}_j\Big(\Big(\frac{q_i}{\|q_i\|} + e\Big) \log(1 + \exp(\tau)) \log N
            \frac{k_j}{\|k_j\|} + b_{ij}\Big) v

    Args:
        query: (B, H, W, heads, d), q.
        key_value: (B, H, W, 2, heads, d), k and v.
        temperature: (heads), tau.
        embedding: (heads, d), e.
        position_bias: b. Only 'cpp' does not make it for all pairs of tokens in memory.
        dropout_p: probability of dropping a weight of the softmax.
        backend: 'reference', 'fused' (torch's fused attention) or 'cpp', see :func:`aggregated_attention`. None chooses
            the fastest that can serve.

    Returns:
        (B, H, W, heads, d), of the dtype of ``key_value``.

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown or cannot run here.
    """
    given = dict(query=query, key_value=key_value, temperature=temperature, embedding=embedding)
    check_maps(dropout_p, **given)
    B, H, W, heads, d = query.shape if query.dim() == 5 else (0,) * 5
    if not is_tracing() and (
        key_value.shape != (B, H, W, 2, heads, d) or temperature.shape != (heads,) or embedding.shape != (heads, d)
    ):
        raise ValueError(
            'query must be (B, H, W, heads, d), key_value (B, H, W, 2, heads, d), temperature (heads) and embedding '
            f'(heads, d), not {", ".join(f"{name} {tuple(x.shape)}" for name, x in given.items())}'
        )
    if backend is None:
        takes = library.takes(query, key_value, dtypes=HALF_OR_SINGLE) and query.dtype == key_value.dtype
        backend = 'cpp' if takes and not dropout_p else 'fused'
    function = named_backend(COSINE_BACKENDS, backend)
    return function(query, key_value, temperature, embedding, position_bias, dropout_p)


def _triton(
    query: Tensor,
    key_value: Tensor,
    pooled: Tensor,
    temperature: Tensor,
    embedding: Tensor,
    bias: Tensor,
    pooled_bias: PooledBias,
    tokens: Tensor,
    token_bias: Tensor,
    dropout_p: float,
) -> Tensor:
    """triton.py, imported when it is needed: Triton is not everywhere."""
    check_triton(query, products=True)
    if not query.dtype == key_value.dtype == pooled.dtype or query.shape[-1] > WIDEST or dropout_p:
        raise CannotServe(
            f"backend 'triton' takes maps of one dtype, heads of at most {WIDEST} channels and no dropout: choose "
            "backend 'shifted'"
        )
    from .triton import aggregated_attention_triton

    parameters = temperature, embedding, bias, tokens, token_bias
    return aggregated_attention_triton(query, key_value, pooled, *parameters, pooled_bias.of_rows(slice(None)))


BACKENDS: dict[str, Callable[..., Tensor]] = {
    'reference': aggregated_attention_reference,
    'shifted': aggregated_attention_shifted,
    'cpp': aggregated_attention_cpp,
    'triton': _triton,
}

COSINE_BACKENDS: dict[str, Callable[..., Tensor]] = {
    'reference': cosine_attention_reference,
    'fused': cosine_attention_fused,
    'cpp': cosine_attention_cpp,
}
