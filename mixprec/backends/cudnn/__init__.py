"""cuDNN 9 through NVIDIA's cudnn-frontend: what to compute, how it was built, which engine does it."""
