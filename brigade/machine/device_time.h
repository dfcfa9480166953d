// How long one device takes for the three kinds of work in a transformer:
// matrix products, passes over memory, and fused attention.
//
// PURE.
#pragma once

#include <cstdint>

#include "brigade/machine/constants.h"
#include "brigade/machine/machine.h"

namespace brigade::machine {

// C [m, n] = A [m, k] B [k, n], `batch` times in one kernel.
struct Product {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t batch = 1;
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) *
           static_cast<double>(k) * static_cast<double>(batch);
  }
};

// Fused attention of `batch` sequences on one device.
struct AttentionWork {
  int64_t batch = 0;
  int64_t queries = 0;  // tokens
  double keys = 0;      // mean number that a query sees
  int64_t heads = 0;
  int64_t head_dim = 0;
};

class DeviceTime {
 public:
  DeviceTime(const Device& device, const Constants& constants)
      : device_(device), constants_(constants) {}

  // The product is cut into tiles (and k into pieces where there are too few);
  // the units work through them in waves, a tile at
  //   2 tm tn tk / (peak * sustained / units) + tile_overhead_s.
  // The best of the usual tile sizes is taken, and never less than the time to
  // move the operands. Where rates were measured, the rate of the smallest
  // dimension is taken instead, between two sizes in proportion to the
  // logarithm. Requires a peak for the dtype.
  double product(const Product& product, ProductDtype dtype) const;

  // What a product with a weight [n, k] takes besides, where that was measured:
  // it does not depend on the rows.
  double weight(int64_t n, int64_t k) const;

  // One kernel that reads and writes so many bytes.
  double memory(double bytes) const;
  // The same for fused elementwise ops on activations, and for the loss's
  // passes over logits.
  double elementwise(double bytes) const;
  double elementwise_backward(double bytes) const;
  double logits(double bytes) const;
  // So many bytes of a batch from the host to the device; where they share
  // their memory, a copy.
  double from_host(double bytes) const;

  // Forward, or forward and backward: a backward has five products where the
  // forward has two.
  double attention_forward(const AttentionWork& work, AttentionKernel kernel)
      const;
  double attention_backward(const AttentionWork& work, AttentionKernel kernel)
      const;

 private:
  double memory_at(double bytes, double bytes_per_s) const;
  double attention_rate(int64_t head_dim, AttentionKernel kernel) const;

  Device device_;
  Constants constants_;
};

}  // namespace brigade::machine
