"""A ResNet step tuned for one H200: what `python bench/train_step.py resnet` trains. Not part of the package."""
