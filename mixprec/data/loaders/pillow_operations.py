"""The operations of augmentation, by Pillow."""

from PIL import Image, ImageEnhance, ImageOps

_ENHANCEMENTS = {
    "brightness": ImageEnhance.Brightness,
    "color": ImageEnhance.Color,
    "contrast": ImageEnhance.Contrast,
    "sharpness": ImageEnhance.Sharpness,
}


def augmented(image, steps):
    """Does the steps of :func:`mixprec.data.loaders.augmentation.steps` to an image.

    Args:
        image (PIL.Image.Image): RGB.
        steps (list of Step): What to do, one after the other.

    Returns:
        PIL.Image.Image: Of the same size.
    """
    for kind, value in steps:
        if kind == "warp":
            image = image.transform(image.size, Image.Transform.AFFINE, value, Image.Resampling.NEAREST)
        elif kind in _ENHANCEMENTS:
            image = _ENHANCEMENTS[kind](image).enhance(value)
        elif kind == "posterize":
            image = ImageOps.posterize(image, value)
        elif kind == "solarize":
            image = ImageOps.solarize(image, value)
        elif kind == "auto_contrast":
            image = ImageOps.autocontrast(image)
        elif kind == "equalize":
            image = ImageOps.equalize(image)
    return image
