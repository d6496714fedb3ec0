# A teacher and a schedule: MMATTN_ROW chooses a row. tools/train.py writes each row to a folder of its
# own, work_dirs/NAME_OF_CONFIG/ROW.
_base_ = './rows/{{$MMATTN_ROW:dinov3-b_1xb128-100e}}.py'
rows = ['dinov2-b_1xb128-100e', 'dinov2-b_8xb128-200e', 'dinov3-b_1xb128-100e', 'dinov3-b_8xb128-200e']
