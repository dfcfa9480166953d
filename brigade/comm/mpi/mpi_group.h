// One group of ranks over MPI: its communicator, its deadline, and how it ends.
// Used by the files of comm/mpi/ only.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/comm/mpi/mpi_process.h"
#include "brigade/comm/sums/group_messages.h"

namespace brigade {

class MpiGroup : public MessageTransport,
                 public std::enable_shared_from_this<MpiGroup> {
 public:
  // Makes a group of these ranks of MPI_COMM_WORLD; collective over them.
  // Throws CommError if not all arrive within options.timeout.
  MpiGroup(
      MpiProcessPtr process,
      int rank,
      const std::vector<int>& members,
      const CommunicatorOptions& options);

  const MpiProcessPtr& process() const { return process_; }
  MPI_Comm comm() const { return comm_; }

  // Launches one of MPI's non-blocking operations on this group's communicator
  // and waits for its end. `tensors`: those that it uses. Throws an exception
  // that says why it failed.
  template <typename Launch>
  void carry_out(
      const Launch& launch,
      const std::vector<torch::Tensor>& tensors) {
    std::vector<MPI_Request> request(1, MPI_REQUEST_NULL);
    process_->locked([&] { return launch(request.data()); });
    wait(request, tensors);
  }

  // Waits for the requests. Fails if this rank or a peer has closed the group,
  // and after the group's timeout; the tensors are abandoned then.
  void wait(
      std::vector<MPI_Request>& requests,
      const std::vector<torch::Tensor>& tensors);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int tags() const override;
  std::unique_ptr<MessageInFlight> receive(
      const torch::Tensor& into,
      int from,
      MessageKind kind,
      int tag) override;
  std::unique_ptr<MessageInFlight>
  send(const torch::Tensor& from, int to, MessageKind kind, int tag) override;
  // Sends every peer a notice.
  std::vector<int> close() override;

 private:
  int tag_on_wire(MessageKind kind, int tag) const;
  // Receives the peers' notices; throws if the group is closed.
  void look_for_end();

  MpiProcessPtr process_;
  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  // Not freed before MPI ends: a peer that fails after this rank has ended its
  // part still sends a notice over it.
  MPI_Comm comm_ = MPI_COMM_NULL;

  std::mutex closing_;
  bool is_closed_ = false;
  std::set<int> closed_before_;  // this rank
  std::set<int> noticed_;        // peers that have closed it
  std::chrono::steady_clock::time_point noticed_at_;
};

}  // namespace brigade
