// The weights of Sharding::kParameters (ZeRO-3; Rajbhandari et al. 2020, and
// FSDP, Zhao et al. 2023, arXiv:2304.11277). Each rank keeps its range of every
// bucket; the weights of a unit (Param::unit) are gathered when it is used
// in forward or backward, and freed when another is. What is used after it is
// gathered meanwhile: the unit that came next when these two were used last in
// this order, so that all ranks that run the same model gather alike.
//
//   kReleased --launch--> kGathering --wait--> kWhole --another is used-->
//     ^                                                                  |
//     +------------------------------------------------------------------+
//
// Two units are whole at a time, but for those that a user holds. A unit that
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
  // Of those with Sharding::kParameters, which outlive it. Each segment is
  // gathered over its group, after a call of `before_gather`, if any, with its
  // index.
  explicit ShardedWeights(
      const ParamMemory& memory,
      std::function<void(size_t segment)> before_gather = {});
  // Waits for what is under way. Parameters are empty afterwards: no rank has
  // them whole.
  ~ShardedWeights();
  ShardedWeights(const ShardedWeights&) = delete;
  ShardedWeights& operator=(const ShardedWeights&) = delete;

  int units() const { return static_cast<int>(units_.size()); }

  // The weights of a unit (of some, for an operation that reads several) can be
  // read until another is used. Throws CommError naming the unit, and, as all
  // that take a unit, ConfigError where there is none of that number.
  void use(int unit) { use_all({&unit, 1}); }
  // The same of several units.
  void use_all(std::span<const int> units);
  // A forward begins whose code may be anyone's: see WeightWatch.
  void begin_pass() { is_in_pass_ = true; }
  bool is_in_pass() const { return is_in_pass_; }
  // A backward, or a forward without one, is over: frees all but what is held.
  void end_pass();
  // A pass is about to begin: gathers what the last one began with.
  void expect_pass();
  // end_pass() after an error; failures of gathers under way are ignored.
  void abandon();

  // The weights of a unit can be read until let_go(), however often it is held.
  void hold(int unit);
  // A unit that nobody holds any longer is freed. Throws ConfigError where
  // nobody did.
  void let_go(int unit);
  bool is_held() const;  // any of them
  // This rank's range takes the whole weights' values, where they differ.
  // Returns whether any that trains did. Precondition: held.
  bool keep_changes(int unit);
  // Adds `change`, shaped as the parameter of that name, to what this rank has
  // of it. Precondition: nothing is held; others see it once it is gathered.
  void add_to(const std::string& name, const torch::Tensor& change);
  // Raised whenever an optimizer, or add_to(), writes this rank's ranges.
  int64_t version() const;
  // Throws ConfigError naming a parameter that an operation has written while
  // nothing was held: no rank keeps what it wrote.
  void throw_if_written() const;
  // What was written so far is kept, or given up.
  void accept_writes();

  // The parameters, as ParamMemory has them.
  std::span<const Param> params() const { return memory_->params(); }
  // The storages of all units, and each one's unit.
  std::vector<std::pair<const void*, int>> storages() const;
  // Whether it is the one in use.
  bool is_current(int unit) const { return std::get<1>(place_) == unit; }

  // Between use and use, for code that cannot throw: the next throw_if_failed()
  // throws `error`.
  void fail_later(std::exception_ptr error);
  // See fail_later().
  void throw_if_failed();
  // Where a unit's weights are read that no rank may gather now: its memory
  // holds NaN but for this rank's range.
  void fill_with_nan(int unit);

  // Of whole weights, now.
  int64_t whole_bytes() const;
  // Of the largest two units.
  int64_t two_units_bytes() const;

 private:
  enum class State { kReleased, kGathering, kWhole, kNan };
  struct Unit {
    State state = State::kReleased;
    int holders = 0;
    std::vector<size_t> segments;
    std::vector<torch::Tensor> memory;  // by dtype
    std::vector<WorkPtr> works;         // by segment, while gathering
    std::string first_param;
    int64_t bytes() const;
  };
  // The unit before, the one in use, and whether autograd records: forwards
  // with and without a backward go different ways.
  using Place = std::tuple<int, int, bool>;

  Unit& unit(int index);
  void launch(int index);
  void wait(int index);
  // Waits for its gathers, whatever becomes of them.
  static void drop_works(Unit& each);
  // Of a gather that failed.
  [[noreturn]] void give_up(int index, const std::exception& error);
  void free(int index);
  void advance(int index);
  int expected_next() const;
  void take_over_memory(std::span<const int> freed, int index);

  const ParamMemory* memory_;
  std::function<void(size_t segment)> before_gather_;
  std::vector<Unit> units_;
  // Of params(), as accept_writes() saw them.
  std::vector<int64_t> written_versions_;
  int64_t kept_changes_ = 0;  // writes of keep_changes()
  std::map<const void*, int> unit_of_storage_;
  Place place_{-1, -1, false};
  std::map<Place, int> next_;
  int first_ = -1;  // of the last pass
  bool is_in_pass_ = false;
  std::exception_ptr failure_;
};

// Holds one unit at a time, and none once it is destroyed. Of null it does
// nothing: weights are whole.
class HeldUnit {
 public:
  explicit HeldUnit(ShardedWeights* weights) : weights_(weights) {}
  ~HeldUnit() { let_go(); }
  HeldUnit(const HeldUnit&) = delete;
  HeldUnit& operator=(const HeldUnit&) = delete;

  // Holds this unit instead of the one before.
  void hold(int unit) {
    if (weights_ == nullptr || unit == unit_)
      return;
    let_go();
    weights_->hold(unit);
    unit_ = unit;
  }
  // Holds none.
  void let_go() {
    if (unit_ >= 0)
      weights_->let_go(std::exchange(unit_, -1));
  }

 private:
  ShardedWeights* weights_;
  int unit_ = -1;
};

}  // namespace brigade
