// The interface of messages between the ranks of a group, independent of the
// backend. Used by the files of comm/ only; PendingMessages (chunk_exchange.h)
// sends and receives them.
#pragma once

#include <torch/types.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace brigade {

// Messages of one kind between two ranks are matched by tag and, within one,
// by order. A kind belongs to one thread of each rank.
//
// Messages of users have the users' tags. The tag of a collective's messages is
// a hash of its number, operation, type and size: if ranks launch different
// collectives, no message of one is taken for the other's, for which it may be
// too long; all wait until the group's timeout.
enum class MessageKind {
  kOfUsers,   // Communicator::send() and recv()
  kExchange,  // collectives in one exchange
  kParts,     // a sum in slices: what its owner adds
  kSums,      // and the sums that the owner sends
};
constexpr int kMessageKinds = 4;

// Tags of messages of kExchange that belong to no collective.
constexpr int kTagOfClosing = 0;  // a rank closes the group
constexpr int kTagOfSignatures = 1;
constexpr int kFirstTagOfCollectives = 2;

// Thrown if messages were not sent or received; names their peers.
class LostMessages : public std::runtime_error {
 public:
  LostMessages(const std::string& why, std::vector<int> peers)
      : std::runtime_error(why), peers_(std::move(peers)) {}

  const std::vector<int>& peers() const { return peers_; }

 private:
  std::vector<int> peers_;
};

// A message under way. Destroyed only after wait() has returned or thrown, or
// never waited for.
class MessageInFlight {
 public:
  virtual ~MessageInFlight() = default;
  // Blocks until it was received or sent; any exception says why it will not
  // be.
  virtual void wait() = 0;
  // Throws where it has not ended within about a millisecond.
  virtual void wait_at_once() = 0;
};

// The transport of one group's messages. Used from any thread.
class MessageTransport {
 public:
  virtual ~MessageTransport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Tags are in [0, tags()).
  virtual int tags() const = 0;
  // Launch a message; the tensor stays alive as long as the transport needs it.
  // Throw std::out_of_range for a tag out of range, any other exception if the
  // message cannot be launched.
  virtual std::unique_ptr<MessageInFlight>
  receive(const torch::Tensor& into, int from, MessageKind kind, int tag) = 0;
  virtual std::unique_ptr<MessageInFlight>
  send(const torch::Tensor& from, int to, MessageKind kind, int tag) = 0;
  // See GroupMessages.
  virtual std::vector<int> close() = 0;
};

// A handle: copies share the transport.
class GroupMessages {
 public:
  explicit GroupMessages(std::shared_ptr<MessageTransport> transport)
      : transport_(std::move(transport)) {}

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  int tags() const { return transport_->tags(); }

  // A copy whose messages have this tag.
  GroupMessages with_tag(int tag) const {
    GroupMessages result = *this;
    result.tag_ = tag;
    return result;
  }

  // Ends this rank's part in the group, so that ranks waiting for it fail soon.
  // Returns the ranks that had ended theirs before: they failed too, or are
  // lost. Later calls close nothing and return the same. Called from any
  // thread.
  std::vector<int> close() const { return transport_->close(); }

 private:
  friend class PendingMessages;  // chunk_exchange.h

  std::shared_ptr<MessageTransport> transport_;
  int tag_ = kFirstTagOfCollectives;
};

}  // namespace brigade
