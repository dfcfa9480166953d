// A Store that a program brings itself, as c10d's backends see it; for the
// files of comm/ only.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "brigade/comm/store.h"

namespace brigade {

// Reads and writes `store`, whose own timeout holds. What Brigade's groups
// never ask of a store and Store does not have (counters, deleting keys) throws
// CommError. `store` is not null.
c10::intrusive_ptr<c10d::Store> make_foreign_store(StorePtr store);

}  // namespace brigade
