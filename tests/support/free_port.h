#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace brigade::testing {

// A port of this machine that nobody listens on, and that the kernel gives
// nobody else while this lives. A server that sets SO_REUSEADDR can listen on
// it: this socket does so too, and does not listen.
class FreePort {
 public:
  FreePort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    EXPECT_EQ(
        ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)), 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket_, generic, length), 0);
    EXPECT_EQ(::getsockname(socket_, generic, &length), 0);
    number_ = ntohs(address.sin_port);
  }
  ~FreePort() { ::close(socket_); }
  FreePort(const FreePort&) = delete;
  FreePort& operator=(const FreePort&) = delete;
  int number() const { return number_; }

 private:
  int socket_;
  int number_ = 0;
};

}  // namespace brigade::testing
