#!/bin/bash
echo "good morning, harbor" > /app/greeting.txt
