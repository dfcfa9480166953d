// Where the parameters of all modules that are wrapped now lay when they were
// wrapped: two modules tied by set_data() are found when the second is wrapped.
#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "brigade/param/param.h"
#include "brigade/param/param_memory.h"

namespace brigade {

// The parameters of one of them.
class WrappedMemory {
 public:
  // Before `weights` has moved them.
  WrappedMemory(const std::vector<Param>& params, FlatWeights weights);
  ~WrappedMemory();
  WrappedMemory(const WrappedMemory&) = delete;
  WrappedMemory& operator=(const WrappedMemory&) = delete;

  // The name of another wrapped module's parameter that has, or had, memory in
  // common with `param`, where one of the two moves and one of them trains;
  // "" where there is none.
  static std::string name_of_sharer(const Param& param, FlatWeights weights);

 private:
  struct Place {
    std::string name;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    int64_t begin = 0;  // in bytes of the storage
    int64_t end = 0;
    bool trains = false;
  };

  static bool shares(const Place& place, const torch::Tensor& tensor);

  FlatWeights weights_;
  std::vector<Place> places_;
};

}  // namespace brigade
