# DINOv3-B is the teacher, for half of UNIC's epochs on one GPU. A row has another teacher or UNIC's schedule.
_base_ = ['./dinov3-b.py', './1xb128-100e.py']
dinov2 = {'model.teacher.model': _base_.teachers.dinov2}
rows = {
    'dinov2-b_1xb128-100e': dinov2,
    'dinov2-b_8xb128-200e': dict(_base_.of_eight_gpus, **dinov2),
    'dinov3-b_1xb128-100e': {},
    'dinov3-b_8xb128-200e': _base_.of_eight_gpus,
}
