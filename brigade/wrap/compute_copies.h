// 16-bit copies of float32 parameters, which replace them while the module
// computes (mixed precision).
//
// The module's tensors stay the same objects, only their data changes:
//
//   forward()   copies take the values, and the place, of the parameters; when
//               it returns, or throws, the parameters are float32 again
//   backward()  from the first gradient of the outputs of forward() until it
//               ends: the copies, with the values of forward. The same in a
//               backward through gradients that one with create_graph gave
//
// so that optimizers, clipping and saving never see a copy. Gradients arrive in
// float32: autograd casts them to the dtype that a parameter had when it was
// wrapped.
//
// Used by the thread that trains and, on GPUs, by autograd's.
#pragma once

#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "brigade/ops/libtorch_versions.h"
#include "brigade/param/param.h"

namespace brigade {

class ComputeCopies {
 public:
  // Makes copies in `dtype` of the float32 parameters, except those named in
  // `keep`; they become each Param's compute_copy. Called before the parameters
  // are passed to a GradSync.
  ComputeCopies(
      std::vector<Param>& params,
      torch::ScalarType dtype,
      const std::vector<std::string>& keep);
  // Removes its hooks. Not called during a backward.
  ~ComputeCopies();
  ComputeCopies(const ComputeCopies&) = delete;
  ComputeCopies& operator=(const ComputeCopies&) = delete;

  // While it lives, the copies have the parameters' values and their place.
  class InForward {
   public:
    explicit InForward(ComputeCopies& copies);
    ~InForward();
    InForward(const InForward&) = delete;
    InForward& operator=(const InForward&) = delete;

   private:
    ComputeCopies* copies_;
    bool were_in_place_;
  };

  // Makes the backward of `output` compute with the copies. `output` is a
  // result of forward(), or a gradient that is differentiated in turn.
  void watch(const torch::Tensor& output);
  // Restores the parameters' own data, of one or of all. Called for an
  // optimizer that steps them while backward runs, and after a backward that
  // broke off.
  void restore(const torch::Tensor& param);
  void restore();

 private:
  struct Copy {
    torch::Tensor param;
    torch::Tensor low;
    torch::Tensor full;  // the parameter's data while `low` has its place
    ops::NodePtr accumulator;
    unsigned hook = 0;
  };

  void take_place();
  static void take_place(Copy& copy);
  static void restore(Copy& copy);
  void on_backward();

  std::vector<Copy> copies_;
  bool are_in_place_ = false;
  bool watches_gradients_ = false;  // that the backward under way returns
  // Watched outputs may outlive this object.
  std::shared_ptr<ComputeCopies*> self_;
};

}  // namespace brigade
