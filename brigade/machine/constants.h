// The constants of the model of time that no data sheet gives. docs/planner.md
// lists each with where it comes from; those fitted to published runs are
// marked there.
//
// PURE.
#pragma once

namespace brigade::machine {

struct Constants {
  // Fixed time of a tile of a product: fetching its first operands and writing
  // its result, while the unit multiplies nothing.
  double tile_overhead_s = 2e-6;
  // The part of the memory bandwidth that streaming kernels reach.
  double memory_efficiency = 0.85;
  // Standard deviation of the speed of devices of one kind under one power
  // limit. A synchronous step waits for the slowest of n: sqrt(2 ln n)
  // deviations.
  double device_spread = 0.016;
  // How much of the time that a collective runs beside computation the
  // computation loses to it (its units and its memory traffic).
  double contention = 0.2;
  // The part of its rate that a product reaches whose rows are no multiple of
  // 128 bytes, a cache line, and of 16 bytes, a vector.
  double off_lines = 0.8;
  double off_vectors = 0.5;
};

}  // namespace brigade::machine
