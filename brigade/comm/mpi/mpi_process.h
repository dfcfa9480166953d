// MPI in this process: started once, called by one thread at a time, ended with
// the process. For the files of comm/mpi/ only.
#pragma once

#include <mpi.h>
#include <torch/types.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace brigade {

class MpiProcess;
using MpiProcessPtr = std::shared_ptr<MpiProcess>;

class MpiProcess {
 public:
  // Starts MPI with the first call, unless the program has: then it must allow
  // calls from several threads. Every rank of MPI_COMM_WORLD has to call it.
  // Throws ConfigError.
  static MpiProcessPtr get();

  // Ends MPI if it was started here and all ranks come to their end too: soon
  // after a failure, else whenever. Otherwise MPI's launcher is left to end
  // them.
  ~MpiProcess();
  // The same before the process ends, for programs that do not call exit().
  // Does nothing where MPI was not started, or has ended.
  static void end_if_started();
  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;

  int rank() const { return rank_; }  // in MPI_COMM_WORLD
  int size() const { return size_; }
  // All ranks, for making groups alone.
  MPI_Comm control() const { return control_; }
  // The largest tag of a message.
  int largest_tag() const { return largest_tag_; }

  // Calls MPI while no other thread does. An error code that `call` returns is
  // a std::runtime_error with MPI's text.
  template <typename Call>
  void locked(const Call& call) {
    const std::lock_guard lock(mutex_);
    check(call());
  }

  // Until all have ended, which become MPI_REQUEST_NULL. `look` is called now
  // and then while they have not; its exceptions pass, and one that names the
  // timeout follows when it is over.
  void wait(
      std::vector<MPI_Request>& requests,
      std::chrono::milliseconds timeout,
      const std::function<void()>& look = nullptr);

  // Operations that go on although nobody waits for them: while there are any,
  // a thread calls MPI now and then, so that they do.
  void begin_unattended();
  void end_unattended();

  // Memory that an operation uses which will not end any more.
  void abandon(std::vector<torch::Tensor> tensors);
  // The ranks do not all come to a common end.
  void set_failed();

 private:
  MpiProcess();
  static void check(int code);
  void run_unattended();
  void end();
  bool all_ranks_end();

  std::mutex mutex_;  // of MPI
  bool is_ours_ = false;
  bool has_ended_ = false;
  int rank_ = 0;
  int size_ = 1;
  int largest_tag_ = 0;
  // This host has more ranks than processors.
  bool is_crowded_ = false;
  MPI_Comm control_ = MPI_COMM_NULL;
  std::vector<torch::Tensor> abandoned_;

  std::mutex state_mutex_;
  std::condition_variable changed_;
  int unattended_ = 0;
  bool has_failed_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace brigade
