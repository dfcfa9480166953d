// A pipeline schedule is a table: for each rank of the pipeline the actions it
// carries out, in order. Pure functions (one_f_one_b.h and others) return the
// computation; add_communication() inserts the sends, the receives and the
// gradient reductions; validate() checks the result; the executor runs it and
// does not know where it came from.
//
// The meaning of the actions of a finished table:
//   * computation runs on the rank, one after the other, and waits for the
//     receive of its input;
//   * a send or receive is posted: the rank goes on at once, but does not start
//     the third computation after a send before that send has ended
//     (kSendSlack), so that few sent tensors are alive;
//   * transfers between two ranks take place in the order in which each of the
//     two posts them, whatever the direction. That is NCCL's rule (one queue
//     for a pair of ranks); Gloo, which matches by tag, requires less.
//
// PURE.
#pragma once

#include <string>
#include <vector>

#include "brigade/schedule/action.h"

namespace brigade {

// Computations that a rank may run between posting a send and waiting for it.
inline constexpr int kSendSlack = 2;

// What a step consists of.
enum class Passes {
  kForwardAndBackward,
  kForwardOnly,  // evaluation
};

struct Schedule {
  std::string name;
  int ranks = 1;
  int virtual_stages = 1;  // of each rank
  int micro_batches = 1;
  Passes passes = Passes::kForwardAndBackward;
  std::vector<std::vector<Action>> per_rank;

  int stages() const { return ranks * virtual_stages; }
  int rank_of(int stage) const { return stage % ranks; }
  bool operator==(const Schedule&) const = default;
};

// The rank that a send goes to or a receive comes from.
int peer_of(const Schedule& schedule, const Action& action);

// Inserts into a table of computation what connects the ranks. Requires that
// validate_computation() finds nothing.
//
// Sends follow the action that produces their tensor. Receives are posted
// one computation before the one during which their tensor is sent, where the
// order of the pair allows it, so that a transfer meets a posted receive.
// Why this cannot deadlock: with computation of any positive length, sort all
// computation by its start and all transfers by the end of their producer.
// Both ends of a transfer are in that one order, and every wait is for
// something earlier in it.
//
// Stages on one rank (pp = 1) hand tensors over without communication.
// kReduceGradients goes before the last kBackward of a stage, so that buckets
// are reduced while it runs, or after its last kBackwardWeight.
Schedule add_communication(Schedule schedule);

// What is wrong with the computation of a table, in words; empty: nothing.
// Every micro-batch goes forward once through each stage and backward once,
// whole or in two halves, on the rank that holds the stage, in an order that
// its data allows on all ranks together.
std::vector<std::string> validate_computation(const Schedule& schedule);

// The same, and: every transfer has one send and one receive, after the
// producer and before the consumer of its tensor; gradients of each stage are
// reduced once, in the right place; and the ranks, run against each other
// under the rules above, all reach their ends.
std::vector<std::string> validate(const Schedule& schedule);

}  // namespace brigade
