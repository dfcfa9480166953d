#include "brigade/comm/mpi/mpi_group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/base/hash.h"

namespace brigade {
namespace {

using Clock = std::chrono::steady_clock;

// The longest message: MPI counts in int.
constexpr int64_t kLargestPiece = int64_t{1} << 30;

// After this time everything that a peer sent before its notice has arrived.
constexpr std::chrono::milliseconds kTimeAfterNotice{20};

// Every MPI has at least twice as many tags.
constexpr int kJoinTags = 16384;

int tag_of_group(const std::string& name, const std::vector<int>& members) {
  return static_cast<int>(
      fnv1a_64(fmt::format("{} {}", name, fmt::join(members, " "))) %
      kJoinTags);
}

// Returns once all members have called it. Takes log2(R) rounds; in each a rank
// tells another that it and those it has heard of are there.
void meet(
    MpiProcess& process,
    int rank,
    const std::vector<int>& members,
    int tag,
    const CommunicatorOptions& options) {
  const int size = static_cast<int>(members.size());
  for (int distance = 1; distance < size; distance *= 2) {
    const int to = members[static_cast<size_t>((rank + distance) % size)];
    const auto from_rank = static_cast<size_t>((rank + size - distance) % size);
    std::vector<MPI_Request> requests(2, MPI_REQUEST_NULL);
    process.locked([&] {
      return MPI_Irecv(
          nullptr,
          0,
          MPI_BYTE,
          members[from_rank],
          tag,
          process.control(),
          &requests[0]);
    });
    process.locked([&] {
      return MPI_Isend(
          nullptr, 0, MPI_BYTE, to, tag, process.control(), &requests[1]);
    });
    try {
      process.wait(requests, options.timeout);
    } catch (const std::exception& error) {
      process.set_failed();
      throw CommError(fmt::format(
          "[comm] rank {} of {} could not join group '{}': {}, waiting for {}",
          rank,
          size,
          options.name,
          error.what(),
          options.member_names.empty()
              ? fmt::format("rank {} of this group", from_rank)
              : options.member_names.at(from_rank)));
    }
  }
}

// The pieces of a tensor's bytes.
template <typename Launch>
void for_each_piece(const torch::Tensor& tensor, const Launch& launch) {
  auto* bytes = static_cast<char*>(tensor.data_ptr());
  int64_t left = tensor.numel() * static_cast<int64_t>(tensor.element_size());
  do {
    const int64_t piece = std::min(left, kLargestPiece);
    launch(bytes, static_cast<int>(piece));
    bytes += piece;
    left -= piece;
  } while (left > 0);
}

class MpiMessage : public MessageInFlight {
 public:
  MpiMessage(
      std::shared_ptr<MpiGroup> group,
      torch::Tensor tensor,
      std::vector<MPI_Request> requests,
      bool is_unattended)
      : group_(std::move(group)),
        tensor_(std::move(tensor)),
        requests_(std::move(requests)),
        is_unattended_(is_unattended) {
    if (is_unattended_)
      group_->process()->begin_unattended();
  }

  ~MpiMessage() override {
    attend();
    if (!has_ended_)
      group_->process()->abandon({tensor_});
  }

  void wait() override {
    attend();
    group_->wait(requests_, {tensor_});
    has_ended_ = true;
  }

  void wait_at_once() override {
    group_->process()->wait(requests_, std::chrono::milliseconds(1));
    has_ended_ = true;
  }

 private:
  void attend() {
    if (std::exchange(is_unattended_, false))
      group_->process()->end_unattended();
  }

  std::shared_ptr<MpiGroup> group_;
  torch::Tensor tensor_;
  std::vector<MPI_Request> requests_;
  bool is_unattended_;
  bool has_ended_ = false;
};

}  // namespace

MpiGroup::MpiGroup(
    MpiProcessPtr process,
    int rank,
    const std::vector<int>& members,
    const CommunicatorOptions& options)
    : process_(std::move(process)),
      rank_(rank),
      size_(static_cast<int>(members.size())),
      timeout_(options.timeout) {
  const int tag = tag_of_group(options.name, members);
  // MPI's call below waits for the members without a deadline. The first meet()
  // ensures that all came, the second that none has given up on the others.
  meet(*process_, rank, members, tag, options);
  meet(*process_, rank, members, tag + kJoinTags, options);
  process_->locked([&] {
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group group = MPI_GROUP_NULL;
    int code = MPI_Comm_group(process_->control(), &all);
    if (code == MPI_SUCCESS)
      code = MPI_Group_incl(all, size_, members.data(), &group);
    if (code == MPI_SUCCESS)
      code = MPI_Comm_create_group(process_->control(), group, tag, &comm_);
    if (code == MPI_SUCCESS)
      code = MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    if (group != MPI_GROUP_NULL)
      MPI_Group_free(&group);
    if (all != MPI_GROUP_NULL)
      MPI_Group_free(&all);
    return code;
  });
}

int MpiGroup::tags() const {
  return process_->largest_tag() / kMessageKinds;
}

int MpiGroup::tag_on_wire(MessageKind kind, int tag) const {
  if (tag < 0 || tag >= tags())
    throw std::out_of_range(
        fmt::format("the tag {} is not in [0, {})", tag, tags()));
  return tag * kMessageKinds + static_cast<int>(kind);
}

std::unique_ptr<MessageInFlight> MpiGroup::receive(
    const torch::Tensor& into,
    int from,
    MessageKind kind,
    int tag) {
  const int wire_tag = tag_on_wire(kind, tag);
  std::vector<MPI_Request> requests;
  for_each_piece(into, [&](void* bytes, int count) {
    requests.push_back(MPI_REQUEST_NULL);
    process_->locked([&] {
      return MPI_Irecv(
          bytes, count, MPI_BYTE, from, wire_tag, comm_, &requests.back());
    });
  });
  return std::make_unique<MpiMessage>(
      shared_from_this(),
      into,
      std::move(requests),
      kind == MessageKind::kOfUsers);
}

std::unique_ptr<MessageInFlight>
MpiGroup::send(const torch::Tensor& from, int to, MessageKind kind, int tag) {
  const int wire_tag = tag_on_wire(kind, tag);
  std::vector<MPI_Request> requests;
  for_each_piece(from, [&](void* bytes, int count) {
    requests.push_back(MPI_REQUEST_NULL);
    process_->locked([&] {
      return MPI_Isend(
          bytes, count, MPI_BYTE, to, wire_tag, comm_, &requests.back());
    });
  });
  return std::make_unique<MpiMessage>(
      shared_from_this(),
      from,
      std::move(requests),
      kind == MessageKind::kOfUsers);
}

void MpiGroup::wait(
    std::vector<MPI_Request>& requests,
    const std::vector<torch::Tensor>& tensors) {
  try {
    process_->wait(requests, timeout_, [this] { look_for_end(); });
  } catch (const std::exception&) {
    process_->abandon(tensors);
    throw;
  }
}

void MpiGroup::look_for_end() {
  const std::lock_guard lock(closing_);
  int is_there = 1;
  while (is_there != 0) {
    MPI_Status status{};
    process_->locked([&] {
      const int tag = tag_on_wire(MessageKind::kExchange, kTagOfClosing);
      int code = MPI_Iprobe(MPI_ANY_SOURCE, tag, comm_, &is_there, &status);
      if (code == MPI_SUCCESS && is_there != 0)
        code = MPI_Recv(
            nullptr,
            0,
            MPI_BYTE,
            status.MPI_SOURCE,
            tag,
            comm_,
            MPI_STATUS_IGNORE);
      return code;
    });
    if (is_there == 0)
      break;
    if (noticed_.empty())
      noticed_at_ = Clock::now();
    noticed_.insert(status.MPI_SOURCE);
  }
  if (is_closed_)
    throw std::runtime_error("this rank has closed the group");
  if (!noticed_.empty() && Clock::now() - noticed_at_ > kTimeAfterNotice)
    throw std::runtime_error(fmt::format(
        "rank{} {} of this group closed it",
        noticed_.size() > 1 ? "s" : "",
        fmt::join(noticed_, ", ")));
}

std::vector<int> MpiGroup::close() {
  process_->set_failed();
  const std::lock_guard lock(closing_);
  if (!is_closed_) {
    is_closed_ = true;
    closed_before_ = noticed_;
    try {
      for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_)
          continue;
        // Nothing waits until the notice is sent.
        MPI_Request request = MPI_REQUEST_NULL;
        process_->locked([&] {
          const int tag = tag_on_wire(MessageKind::kExchange, kTagOfClosing);
          const int code =
              MPI_Isend(nullptr, 0, MPI_BYTE, peer, tag, comm_, &request);
          return code == MPI_SUCCESS ? MPI_Request_free(&request) : code;
        });
      }
    } catch (const std::exception&) {
      // The peers then fail by their own deadline.
    }
  }
  return {closed_before_.begin(), closed_before_.end()};
}

}  // namespace brigade
