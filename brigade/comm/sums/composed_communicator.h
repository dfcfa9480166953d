// The base of communicators over different backends: collectives that are
// composed of messages from rank to rank (chunk_exchange.h), sent from and
// received into the tensors' memory, and the failing of a group.
//
//   all_gather           the own chunk to each rank
//   reduce_scatter       each rank's chunk to it; the waiting thread adds them,
//                        large ones the communicator's own
//   all_reduce of bf16   both; between two ranks one message each way, added
//                        likewise
//   all_to_all, ..._single  each rank's rows to it
//   all_reduce_rows      row_all_reduce.h
//   all_reduce_as_bf16   bf16_all_reduce.h
//   send, recv           one message
//
// A thread of the communicator sends and waits, in the order of launches. A
// rank that lost a peer closes the group, so that the others fail soon. An
// exception of another kind (no memory, an invalid tag) is an Error of this
// operation alone. Used by the files of comm/ only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/any_tensor.h"
#include "brigade/comm/communicator.h"
#include "brigade/comm/sequential_worker.h"
#include "brigade/comm/start/post_mortem.h"
#include "brigade/comm/store.h"
#include "brigade/comm/sums/chunk_exchange.h"

namespace brigade {

// The behaviour of a thread that waits for a composed collective.
enum class Waiting {
  kSleep,
  kHelp,  // runs launched tasks, unless the worker has begun with them
};

class ComposedCommunicator : public Communicator {
 protected:
  using Record = const CollectiveRecord&;

  ComposedCommunicator(
      const StorePtr& store,
      CommunicatorOptions options,
      GroupMessages messages,
      Waiting waiting);

  // The messages of a collective, with its tag.
  GroupMessages messages_of(Record record) const;
  // The messages of `rows` rows of an all_to_all_single: if splits do not fit,
  // no rank takes one message for another.
  GroupMessages messages_of(Record record, int64_t rows) const;
  const GroupFailuresPtr& failures() const { return failures_; }

  // Waits for the queued tasks. A derived class whose tasks use its own members
  // calls this in its destructor; nothing is launched afterwards.
  void end_tasks() { worker_.reset(); }

  // Returns what launch() returns; turns its exception into one that names the
  // operation.
  template <typename Launch>
  auto guarded(Record record, Launch&& launch) -> decltype(launch()) {
    const AnyTensorMode any_tensor;
    try {
      return launch();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      failures_->fail(record, error);
    }
  }

  // Runs `body` on the worker, in launch order, and then `last` on the thread
  // that waits for the end. body returns Work::reduced_bytes().
  template <typename Body>
  WorkPtr
  composed(Record record, Body body, std::function<void()> last = nullptr) {
    auto task = launch_task(
        worker_,
        record,
        [body = std::move(body)]() -> std::optional<int64_t> {
          if constexpr (!std::is_void_v<decltype(body())>)
            return body();
          body();
          return std::nullopt;
        },
        {failures_, waiting_ == Waiting::kHelp});
    if (!last)
      return task;
    return join_works(
        {.works = {std::move(task)},
         .then = [failures = failures_, record, last = std::move(last)] {
           const AnyTensorMode any_tensor;
           try {
             last();
           } catch (const std::exception& error) {
             failures->fail(record, error);
           }
         }});
  }

  // Calls receive() to fill [rows, sum.numel()] with other ranks' chunks, and
  // then add() to add them to `sum`.
  WorkPtr received_and_added(
      Record record,
      const torch::Tensor& sum,
      int64_t rows,
      std::function<void(const torch::Tensor&)> receive,
      std::function<void(const torch::Tensor&)> add);

  // The sum over ranks, whatever the dtype.
  WorkPtr sum_by_messages(const torch::Tensor& tensor, Record record);
  // The same; each rank adds its own chunk of all ranks' tensors.
  WorkPtr sum_by_owners(std::vector<torch::Tensor> chunks, Record record);

  WorkPtr do_all_reduce_rows(torch::Tensor matrix, Record record) override;
  WorkPtr do_all_reduce_as_bf16(torch::Tensor tensor, Record record) override;
  WorkPtr do_reduce_scatter(
      torch::Tensor output,
      torch::Tensor input,
      Record record) override;
  WorkPtr do_all_gather(
      torch::Tensor output,
      torch::Tensor input,
      Record record) override;
  WorkPtr do_send(torch::Tensor tensor, int destination, int tag, Record record)
      override;
  WorkPtr do_recv(torch::Tensor tensor, int source, int tag, Record record)
      override;
  WorkPtr do_all_to_all(
      torch::Tensor output,
      torch::Tensor input,
      const RowSplits& splits,
      Record record) override;
  void gather_signatures(
      const torch::Tensor& all,
      const torch::Tensor& mine,
      Record record) override;

 private:
  // Launches one message from or to a rank.
  template <typename Launch>
  WorkPtr message(Record record, int tag, Launch&& launch) {
    return guarded(record, [&]() -> WorkPtr {
      auto message = std::make_shared<PendingMessages>(
          messages_.with_tag(tag), MessageKind::kOfUsers);
      launch(*message);
      // The backend reports the end only to a wait().
      return join_works({.then = [message, record, failures = failures_] {
        try {
          message->wait();
        } catch (const std::exception& error) {
          failures->fail(record, error);
        }
      }});
    });
  }

  GroupMessages with_tag_of(const std::string& operation) const;

  GroupMessages messages_;
  GroupFailuresPtr failures_;
  Waiting waiting_;
  // The values that others sent, while a task adds them; tasks use it one after
  // another.
  std::shared_ptr<torch::Tensor> buffer_ = std::make_shared<torch::Tensor>();
  std::shared_ptr<SequentialWorker> worker_;  // last: its tasks use the rest
};

// A view of the same memory as flat bytes; keeps the tensor alive.
torch::Tensor as_bytes(const torch::Tensor& tensor);

}  // namespace brigade
