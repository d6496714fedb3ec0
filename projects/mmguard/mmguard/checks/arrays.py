"""Images in files of NumPy, for all packages of OpenMMLab."""

import io

import numpy as np
from mmcv.transforms import LoadImageFromFile
from mmengine.fileio import get
from mmengine.registry import TRANSFORMS

from ..errors import InputError


@TRANSFORMS.register_module()
class LoadImageFromNpyFile(LoadImageFromFile):
    """Load an image (H, W) or (H, W, C) of whole numbers or floats from a .npy file, whatever its number of bands.

    MMSegmentation's class of the same name reads the same files; its last release with OpenMMLab's packages has none.

    Args:
        to_float32: cast the values to float32.
        backend_args: of MMEngine's file backend.

    Raises:
        InputError: if the file has something else. No code in it is run.
    """

    def transform(self, results: dict) -> dict:
        path = results['img_path']
        image = np.load(io.BytesIO(get(path, backend_args=self.backend_args)), allow_pickle=False)
        if not isinstance(image, np.ndarray) or image.ndim not in (2, 3) or image.dtype.kind not in 'uif':
            what = f'{image.dtype} of shape {image.shape}' if isinstance(image, np.ndarray) else 'several arrays'
            raise InputError(f'{path} has {what}, but an image is height x width x bands of numbers')
        results['img'] = image.astype(np.float32) if self.to_float32 else image
        results['img_shape'] = results['ori_shape'] = image.shape[:2]
        return results
