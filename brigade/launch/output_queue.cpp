#include "brigade/launch/output_queue.h"

#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace brigade {
namespace {

// A pipe that is ready takes PIPE_BUF bytes without waiting, a file any number.
size_t piece_bytes(int descriptor) {
  struct stat status {};
  const bool is_file =
      ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  return is_file ? SIZE_MAX : PIPE_BUF;
}

}  // namespace

OutputQueue::OutputQueue(int descriptor)
    : descriptor_(descriptor), piece_bytes_(piece_bytes(descriptor)) {}

void OutputQueue::push(std::string_view bytes) {
  bytes_ += bytes;
  write_some();
}

size_t OutputQueue::write_some() {
  const size_t before = begin_;
  while (!is_empty()) {
    pollfd writable{.fd = descriptor_, .events = POLLOUT, .revents = 0};
    if (::poll(&writable, 1, 0) <= 0)
      break;
    const size_t count = std::min(piece_bytes_, bytes_.size() - begin_);
    const ssize_t written = ::write(descriptor_, bytes_.data() + begin_, count);
    if (written >= 0)
      begin_ += static_cast<size_t>(written);
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      break;
    else if (errno != EINTR) {
      failure_ = failure_ == 0 ? errno : failure_;
      begin_ = bytes_.size();
    }
  }
  const size_t taken = begin_ - before;
  // Moves what is left to the front now and then, not for each piece.
  if (is_empty() || begin_ >= kCapacityBytes) {
    bytes_.erase(0, begin_);
    begin_ = 0;
  }
  return taken;
}

size_t OutputQueue::drop() {
  const size_t left = bytes_.size() - begin_;
  bytes_.clear();
  begin_ = 0;
  return left;
}

}  // namespace brigade
