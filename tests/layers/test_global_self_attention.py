import pytest
import torch

from mmattn.layers import GlobalSelfAttention


def from_golden(data, **parts):
    """The module of golden/gsa.pt, in float64 and eval mode; parts can be left out."""
    c, bn = data['config'], data['bn']
    layer = GlobalSelfAttention(c['channels'], c['heads'], c['rel_pos_length'], **parts).double().eval()
    weights = {f'{name}.weight': data[f'w_{name}'][:, :, None, None] for name in ('query', 'key', 'value')}
    weights.update(rel_col=data['rel_col'], rel_row=data['rel_row'])
    weights.update({'bn.weight': bn['weight'], 'bn.bias': bn['bias'], 'bn.running_mean': bn['mean'],
                    'bn.running_var': bn['var'], 'bn.num_batches_tracked': torch.tensor(0)})
    layer.load_state_dict({name: weights[name] for name in layer.state_dict()})
    return layer


@pytest.mark.parametrize('memory_format', [torch.contiguous_format, torch.channels_last])
def test_computes_the_equations(golden, memory_format):
    """To 1e-9 in double precision: the whole, and the columns alone, whatever the memory layout."""
    data = golden('gsa')
    x = data['input'].contiguous(memory_format=memory_format)
    out = from_golden(data)(x)
    torch.testing.assert_close(out, data['output'], atol=1e-9, rtol=0)
    column = from_golden(data, content=False, row=False)(x)
    torch.testing.assert_close(column, data['column_attention_before_bn'], atol=1e-9, rtol=0)
