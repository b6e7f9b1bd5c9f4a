module example.com/handler

go 1.21
