# The student's backbone and the teacher are to be added. The student's images are normalised as those of MMDetection
# and MMSegmentation.
model = dict(type='FeatureDistiller', data_preprocessor=dict(type='ViewPreprocessor'))
