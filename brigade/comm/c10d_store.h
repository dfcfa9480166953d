// A Store as c10d's; for the files of comm/ only.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "brigade/comm/store.h"

namespace brigade {

// The one inside of those that store.h makes; of any other, one that calls it.
c10::intrusive_ptr<c10d::Store> c10d_store(const StorePtr& store);

}  // namespace brigade
