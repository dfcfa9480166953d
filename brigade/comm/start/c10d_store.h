// Stores and reductions as c10d's backends see them; for the files of comm/
// only.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "brigade/comm/collective.h"
#include "brigade/comm/store.h"

namespace brigade {

// The one inside of those that store.h makes; for any other,
// make_foreign_store().
c10::intrusive_ptr<c10d::Store> c10d_store(const StorePtr& store);

// A Store that a program brings itself. Reads and writes `store`, whose own
// timeout holds. What Brigade's groups never ask of a store and Store does not
// have (counters, deleting keys) throws CommError. `store` is not null.
c10::intrusive_ptr<c10d::Store> make_foreign_store(StorePtr store);

// `inner` as this rank of a group of `size` sees it, while the group is made:
// with few questions. Gloo's members each set their addresses and then ask for
// every other's, one by one: R (R - 1) answers of the store for R ranks. Here
// the group's first rank asks for them, and sets them together under one key
// that the others read: a rank costs two keys and one wait, the first rank one
// look-up per member. Keys whose last part (behind a '/') is a rank are
// gathered; all others pass.
c10::intrusive_ptr<c10d::Store>
make_group_store(c10::intrusive_ptr<c10d::Store> inner, int rank, int size);

inline c10d::ReduceOp to_c10d(ReduceOp op) {
  if (op == ReduceOp::kSum)
    return c10d::ReduceOp::SUM;
  return op == ReduceOp::kMax ? c10d::ReduceOp::MAX : c10d::ReduceOp::MIN;
}

}  // namespace brigade
