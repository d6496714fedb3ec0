# Rows of MSF's table 1 in a narrow ViT: which projections share a matrix. MMATTN_ROW=o chooses a row.
_base_ = '../compare/_base_/tasks/classifier.py'
rows = {'a': 'QQQQQ', 'b': 'QKKQQ', 'f': 'QKKKQ', 'o': 'QKVPP', 'r': 'QKVPW'}
row = '{{$MMATTN_ROW:r}}'
model = dict(
    backbone=dict(
        type='MSFViT', arch=dict(embed_dim=80, depth=4, num_heads=4), patch_size=8, sharing=rows[row], final_norm=True
    ),
    head=dict(in_channels=80),
)
