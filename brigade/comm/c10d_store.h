// The c10d store inside a Store; for the files of comm/ only.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "brigade/comm/store.h"

namespace brigade {

c10::intrusive_ptr<c10d::Store> c10d_store(const StorePtr& store);

}  // namespace brigade
