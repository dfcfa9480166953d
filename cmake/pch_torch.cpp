// Carries the precompiled header cmake/pch_torch.h.
