// What is still to be written to one descriptor whose other side may be slow or
// stuck (a pager, a terminal that is stopped): written piece by piece when
// poll() says so, so that the writer never waits. No O_NONBLOCK: other
// processes share the descriptor.
//
// One thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace brigade {

class OutputQueue {
 public:
  explicit OutputQueue(int descriptor);

  int descriptor() const { return descriptor_; }
  bool is_empty() const { return bytes_.size() == begin_; }
  // Take no more input for now.
  bool is_full() const { return bytes_.size() - begin_ >= kCapacityBytes; }

  // Writes what can be written without waiting, queues the rest.
  void push(std::string_view bytes);
  // As much as the descriptor takes now. Returns the number of bytes that it
  // took; a descriptor that fails (a closed pipe, a full disk) takes all.
  size_t write_some();
  // The errno of the first failure; 0: none.
  int failure() const { return failure_; }
  // Forgets what is queued. Returns its size.
  size_t drop();

 private:
  static constexpr size_t kCapacityBytes = size_t{1} << 20;
  int descriptor_;
  size_t piece_bytes_;  // that a descriptor which is ready takes at once
  std::string bytes_;
  size_t begin_ = 0;  // of bytes_, before it all is written
  int failure_ = 0;
};

}  // namespace brigade
