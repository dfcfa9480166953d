// A Communicator is one process group: a list of ranks that call the same
// collectives in the same order. There is one for every axis of the mesh, even
// for a group of one rank (SelfCommunicator), whose collectives copy or do
// nothing.
//
// Life: made by ProcessMesh (or by a test) on every member at once, used from
// any thread of its process but by one thread at a time, destroyed on every
// member. A launch returns at once; after Work::wait() this thread may use the
// tensors on their device (or, of a sent tensor, overwrite it).
//
// It moves a model's tensors, on the group's device, and small values on the
// CPU, whatever the device. Agreement on values has its own interface:
// comm/agreement.h.
//
// On a device with streams a collective is ordered behind what the launching
// thread's current stream holds, runs on a stream of its own, and wait() orders
// the waiting thread's current stream behind it (comm/device_stream.h).
//
// Every launch is recorded (CollectiveRecord). If check_collectives is on, its
// signature (operation, dtype, numel, sequence number) is compared across the
// group first, because Gloo itself would sum float32 with int32 without an
// error.
//
// Costs, for n bytes in a group of R ranks, ring algorithms (bytes sent by each
// rank): all_reduce 2n(R-1)/R; reduce_scatter n(R-1)/R with n = the input;
// all_gather n(R-1)/R with n = the output; broadcast n; all_to_all n(R-1)/R;
// all_reduce_rows (R-1)n with n = the rank's rows that are not zero, or
// 2n(R-1)/R with n = the matrix where the ranks' rows would be more;
// all_to_all_single the rows that go to other ranks.
#pragma once

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "brigade/comm/collective.h"
#include "brigade/comm/flight_recorder.h"
#include "brigade/comm/work.h"

namespace brigade {

// One message out and one in at the same time: a step of a ring.
struct MessagePair {
  torch::Tensor sent;  // without elements: nothing is sent
  int destination = 0;
  torch::Tensor received;  // overwritten; without elements: nothing is received
  int source = 0;
  int tag = 0;  // of both
};

// The numbers of rows that go to and come from each rank, in rank order. Both
// empty: equal parts.
struct RowSplits {
  std::vector<int64_t> output;  // received from each rank
  std::vector<int64_t> input;   // sent to each rank
  bool is_even() const { return output.empty() && input.empty(); }
};

// Options of one group; the same on all its members.
struct CommunicatorOptions {
  std::string name = "world";  // appears in every error
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  bool check_collectives = false;
  // The number of launches that records() keeps, the latest ones; 0 keeps none.
  int64_t max_records = 0;
  // The device of this rank's model tensors; with an index, if the kind of
  // device has one. Tensors on the CPU are accepted in any case.
  torch::Device device = torch::kCPU;
  // The members' ranks in the whole run, in the group's order. Empty: those of
  // the group.
  std::vector<int> members;
  // The names of members in errors: "rank 3 (dp 1, tp 1)". Empty: "rank 1 of
  // this group".
  std::vector<std::string> member_names;
  // Records this rank's operations; null: nothing does.
  FlightRecorderPtr flight_recorder;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }  // in this group
  int size() const { return size_; }
  const std::string& name() const { return options_.name; }
  const CommunicatorOptions& options() const { return options_; }

  // Dense and contiguous tensors of any shape: only numel counts. Throws
  // UsageError naming a tensor, dtype or peer that an operation cannot take.
  // all_reduce() is in place: tensor becomes op over the group's tensors.
  WorkPtr all_reduce(torch::Tensor tensor, ReduceOp op = ReduceOp::kSum);
  // The sum of float32 tensors, rounded once to bf16, which travel in bf16:
  // half the bytes.
  WorkPtr all_reduce_as_bf16(torch::Tensor tensor);
  // The sum of matrices most of whose rows are zero (an embedding's gradients);
  // zero rows are not sent. matrix: [N, C] of float32 or float64, in place.
  WorkPtr all_reduce_rows(torch::Tensor matrix);
  // input: R * n elements; output: n elements, the rank-th chunk of the sum.
  WorkPtr reduce_scatter(torch::Tensor output, torch::Tensor input);
  // input: n elements; output: R * n elements in rank order.
  WorkPtr all_gather(torch::Tensor output, torch::Tensor input);
  // root's tensor replaces those of the others.
  WorkPtr broadcast(torch::Tensor tensor, int root);
  // Chunk i of input goes to rank i; chunk j of output comes from rank j.
  WorkPtr all_to_all(torch::Tensor output, torch::Tensor input);
  // The same with as many rows for each rank as `splits` says, as PyTorch's
  // function of this name: the exchange of tokens between experts, say. Rows
  // are along the first dimension and of one size on all ranks; a rank must
  // send another as many rows as that one expects: check_collectives compares
  // them; without it the group fails by its timeout.
  WorkPtr all_to_all_single(
      torch::Tensor output,
      torch::Tensor input,
      const RowSplits& splits);
  // Messages are matched by (peer, tag); tags from 0 to 2^28 - 2. The tensor
  // must not be written before wait(). Only a group of one sends to itself.
  WorkPtr send(torch::Tensor tensor, int destination, int tag = 0);
  // Fills tensor with what source sends under the same tag.
  WorkPtr recv(torch::Tensor tensor, int source, int tag = 0);
  // A send() and a recv() that cannot wait for one another: every member of a
  // ring may call it first.
  WorkPtr exchange(const MessagePair& pair);
  // Blocks until every member has called it.
  void barrier();

  // Whether the messages between two ranks are executed one after the other in
  // the order of the calls, whatever their tags. If so, two ranks that both
  // receive before they send deadlock.
  virtual bool is_ordered() const { return false; }
  // Collective: connects each rank with the next and the previous one, for a
  // backend that connects two ranks at their first message and blocks the host
  // until both have launched it.
  virtual void connect_ring() {}
  // Throws CommError if an operation that was waited for only on the device has
  // failed. Called once the host has read the device's results, before it uses
  // them.
  virtual void throw_if_failed() {}

  // The latest launches, oldest first; valid until the next launch.
  const std::deque<CollectiveRecord>& records() const { return records_; }
  // Forgets them.
  void clear_records() { records_.clear(); }
  int64_t launches() const { return sequence_number_; }

 protected:
  Communicator(int rank, int size, CommunicatorOptions options);

  // By default a bf16 copy is all-reduced, and the waiting thread widens it:
  // right for a backend that sums bf16 in float32.
  virtual WorkPtr do_all_reduce_as_bf16(
      torch::Tensor tensor,
      const CollectiveRecord& record);
  // By default the whole matrix is all-reduced, for a backend that sends no
  // messages.
  virtual WorkPtr do_all_reduce_rows(
      torch::Tensor matrix,
      const CollectiveRecord& record);

 private:
  // The backend's part of each launch. `record` names it in errors.
  virtual WorkPtr do_all_reduce(
      torch::Tensor tensor,
      ReduceOp op,
      const CollectiveRecord& record) = 0;
  virtual WorkPtr do_reduce_scatter(
      torch::Tensor output,
      torch::Tensor input,
      const CollectiveRecord& record) = 0;
  virtual WorkPtr do_all_gather(
      torch::Tensor output,
      torch::Tensor input,
      const CollectiveRecord& record) = 0;
  virtual WorkPtr do_broadcast(
      torch::Tensor tensor,
      int root,
      const CollectiveRecord& record) = 0;
  // Splits that are not even have been checked against the tensors, whose first
  // dimension is that of the rows.
  virtual WorkPtr do_all_to_all(
      torch::Tensor output,
      torch::Tensor input,
      const RowSplits& splits,
      const CollectiveRecord& record) = 0;
  virtual WorkPtr do_send(
      torch::Tensor tensor,
      int destination,
      int tag,
      const CollectiveRecord& record) = 0;
  virtual WorkPtr do_recv(
      torch::Tensor tensor,
      int source,
      int tag,
      const CollectiveRecord& record) = 0;
  // By default launches one message after the other, for a backend whose
  // messages are independent.
  virtual WorkPtr do_exchange(
      const MessagePair& pair,
      const CollectiveRecord& send,
      const CollectiveRecord& recv);
  virtual WorkPtr do_barrier(const CollectiveRecord& record) = 0;
  // Called before a collective if check_collectives is on: fills all [R, n]
  // with every member's `mine` [n], int64 on the CPU, although the members may
  // have launched different collectives.
  virtual void gather_signatures(
      const torch::Tensor& all,
      const torch::Tensor& mine,
      const CollectiveRecord& record);

  CollectiveRecord
  record_of(Collective op, const torch::Tensor& tensor, int peer) const;
  CollectiveRecord begin(Collective op, const torch::Tensor& tensor, int peer);
  CollectiveRecord begin(CollectiveRecord record, const RowSplits& splits = {});
  // Throws CommError on every member if they launch different collectives, or
  // expect other rows than are sent.
  void check_same_call(const CollectiveRecord& record, const RowSplits& splits);
  // Notes the operation in the flight recorder; returns its id there.
  int64_t note(const CollectiveRecord& record, int64_t shared_number);
  template <typename Launch>
  WorkPtr launched(const CollectiveRecord& record, const Launch& launch);

  int rank_;
  int size_;
  CommunicatorOptions options_;
  int64_t sequence_number_ = 0;  // of all launches
  int64_t collectives_ = 0;      // those that every member shares
  // Counts of messages by kind and peer, the same on both ends.
  std::map<std::pair<Collective, int>, int64_t> messages_;
  int flight_group_ = -1;  // in the flight recorder
  std::deque<CollectiveRecord> records_;
};
// Shared by everything that communicates in the group; never null.
using CommunicatorPtr = std::shared_ptr<Communicator>;

// Options of a group whose operations another one has checked and recorded.
CommunicatorOptions unobserved(CommunicatorOptions options);

}  // namespace brigade
