// The weights of Sharding::kParameters (ZeRO-3, Rajbhandari et al. 2020; FSDP,
// Zhao et al. 2023, arXiv:2304.11277). Each rank keeps its range of every
// bucket; the weights of a unit (Param::unit) are gathered when it is used in
// forward or backward, and freed when another one is. Meanwhile the next unit
// is prefetched: the one that came next when these two were last used in this
// order, so that all ranks that run the same model gather the same units.
//
//   kReleased --launch--> kGathering --wait--> kWhole --another is used-->
//     ^                                                                  |
//     +------------------------------------------------------------------+
//
// Two units are whole at a time, besides those that a user holds. A unit that
// is used last in forward and first in backward is gathered once for both, and
// so is the one before it: for n bytes of weights a step sends at most
// 2n(R-1)/R.
//
// Calls are collective: every rank makes the same ones in the same order. They
// come from the thread that runs forward or backward.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/communicator.h"
#include "brigade/param/param_memory.h"

namespace brigade {

class ShardedWeights {
 public:
  // The memory must have Sharding::kParameters and outlive this object. Each
  // segment is gathered over its group, after a call of `before_gather`, if
  // any, with its index.
  explicit ShardedWeights(
      const ParamMemory& memory,
      std::function<void(size_t segment)> before_gather = {});
  // Waits for gathers under way. Parameters are empty afterwards: no rank has
  // them whole.
  ~ShardedWeights();
  ShardedWeights(const ShardedWeights&) = delete;
  ShardedWeights& operator=(const ShardedWeights&) = delete;

  int units() const { return static_cast<int>(units_.size()); }

  // Makes the weights of a unit readable until another one is used. Throws
  // CommError naming the unit and, as all functions that take a unit except
  // is_current(), UsageError if there is none of that number.
  void use(int unit) { use_all({&unit, 1}); }
  // The same for several units, of an operation that reads them all.
  void use_all(std::span<const int> units);
  // A forward of unknown code begins: see WeightObserver.
  void begin_pass() { is_in_pass_ = true; }
  bool is_in_pass() const { return is_in_pass_; }
  // A backward, or a forward without one, is over: frees all units that are not
  // held.
  void end_pass();
  // A pass is about to begin: prefetches the unit that the last one began with.
  void expect_pass();
  // end_pass() after an error; failures of gathers under way are ignored.
  void abandon();

  // Makes the weights of a unit readable until let_go(), called once per
  // hold().
  void hold(int unit);
  // Ends a hold(); the unit is freed once nobody holds it and it is not in use.
  // Throws UsageError if nobody holds it.
  void let_go(int unit);
  bool is_held() const;  // any of them
  // Copies the whole weights' values into this rank's range where they differ.
  // Returns whether any that trains did. Precondition: the unit is held.
  bool keep_changes(int unit);
  // Adds `change`, shaped as the parameter of that name, to this rank's part of
  // it. Precondition: nothing is held. Other ranks see it at the next gather.
  void add_to(const std::string& name, const torch::Tensor& change);
  // Raised whenever an optimizer, or add_to(), writes this rank's ranges.
  int64_t version() const;
  // Throws UsageError naming a parameter that an operation has written while
  // nothing was held: no rank keeps such values.
  void throw_if_written() const;
  // Accepts the writes so far: throw_if_written() does not report them.
  void accept_writes();

  // The parameters, as ParamMemory has them.
  std::span<const Param> params() const { return memory_->params(); }
  // The storages of all units, and each one's unit.
  std::vector<std::pair<const void*, int>> storages() const;
  // Whether this unit is the one in use.
  bool is_current(int unit) const { return std::get<1>(place_) == unit; }

  // Called by code that cannot throw: the next throw_if_failed() throws
  // `error`, or an earlier one that is still to be thrown.
  void fail_later(std::exception_ptr error);
  // See fail_later().
  void throw_if_failed();
  // Called when a unit is read while no rank may gather: fills its memory with
  // NaN, except this rank's range. Does nothing unless the unit is released.
  void fill_with_nan(int unit);

 private:
  enum class State { kReleased, kGathering, kWhole, kNan };
  struct Unit {
    State state = State::kReleased;
    int holders = 0;
    std::vector<size_t> segments;
    std::vector<torch::Tensor> memory;  // by dtype
    std::vector<WorkPtr> works;         // by segment, while gathering
  };
  // The previous unit, the one in use, and whether autograd records: passes
  // with and without a backward use units in different orders.
  using Place = std::tuple<int, int, bool>;

  Unit& unit(int index);
  void launch(int index);
  void wait(int index);
  // Waits for the unit's gathers and ignores their errors.
  static void drop_works(Unit& each);
  // Releases the unit after a gather failed, and throws CommError, or for
  // another failure an Error, naming it.
  [[noreturn]] void give_up(int index, const std::exception& error);
  void free(int index);
  void advance(int index);
  int expected_next() const;
  void take_over_memory(std::span<const int> freed, int index);

  const ParamMemory* memory_;
  std::function<void(size_t segment)> before_gather_;
  std::vector<Unit> units_;
  int64_t kept_changes_ = 0;  // writes of keep_changes()
  std::map<const void*, int> unit_of_storage_;
  Place place_{-1, -1, false};
  std::map<Place, int> next_;
  int first_ = -1;  // of the last pass
  bool is_in_pass_ = false;
  std::exception_ptr failure_;
};

}  // namespace brigade
