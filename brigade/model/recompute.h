// Activation checkpointing (recomputation): trades compute for memory (Chen et
// al. 2016, "Training Deep Nets with Sublinear Memory Cost"): a part of the
// model keeps its inputs only; backward runs it a second time and then goes
// back through that.
#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

namespace brigade {

// A part of the model: tensors in, one tensor out. Must give the same result
// both times it is run; on every rank the same collectives are launched both
// times.
using RecomputedFunction =
    std::function<torch::Tensor(const std::vector<torch::Tensor>& inputs)>;

// function(inputs), with the same gradients to the last bit: of the inputs, and
// of the parameters that `function` reads, which get theirs through their
// usual hooks and .grad in the middle of backward. Any number of calls may be
// alive at once; calls may nest. Entries of `inputs` may be undefined.
//
// Random numbers (dropout) of the default generators, of the CPU and of the
// inputs' CUDA devices, are the same both times: the second run starts from
// their states before the first, and leaves them as it found them. Other
// threads that draw from them meanwhile would disturb that.
//
// Costs one more forward of the part; keeps the inputs instead of everything
// that its operations save. `function` is copied and lives until backward, so
// what it captures by reference must live as long. The gradients cannot be
// differentiated again (create_graph): Error.
//
// Without grad mode it is function(inputs).
torch::Tensor recompute(
    RecomputedFunction function,
    const std::vector<torch::Tensor>& inputs);

}  // namespace brigade
